"""Linears of the native ops: against float64, and bit for bit over rows, places, threads and instruction sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helexa.formats.ggml_types import BY_NAME, dequantise, packed_bytes
from workers.ops.native import library
from workers.ops.native import ops as ops_module

OF_32 = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
OF_256 = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
QUANTISED = OF_32 + OF_256
KINDS = [*QUANTISED, "F32", "F16", "BF16"]
PART = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16}  # weights that are summed as integers, where not 32
# Where a block of a type with a minimum has its integers.
INTEGERS = {
    "Q4_1": slice(4, 20),
    "Q5_1": slice(4, 24),
    "Q2_K": slice(16, 80),
    "Q4_K": slice(16, 144),
    "Q5_K": slice(16, 176),
}


def columns_of(kind: str, columns: int) -> int:
    """A width that the type allows."""
    return columns if kind not in OF_256 else -(-columns // 256) * 256


def activations(rows: int, columns: int, seed: int = 1) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, columns)) * np.exp(random.standard_normal((rows, 1)))).astype(np.float32)


def as_integers(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """What the rows become once quantised: 16-bit integers with one scale per 32, in the library's float32 steps."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.where(largest > 0, np.float32(32767) / np.where(largest > 0, largest, np.float32(1)), np.float32(0))
    scale = largest / np.float32(32767)
    values: NDArray[np.float64] = np.rint(blocks * inverse).astype(np.float64) * scale.astype(np.float64)
    return values.reshape(x.shape)


def magnitudes(kind: str, raw: Any, dense: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum of the magnitudes a weight is made of: what roundings are relative to. A minimum, which is what a weight is where its
    integer is 0, is multiplied apart."""
    if kind not in INTEGERS:
        return np.abs(dense.astype(np.float64))
    blocks = raw.data.reshape(-1, BY_NAME[kind].block_bytes).copy()
    blocks[:, INTEGERS[kind]] = 0
    minimum = dequantise(kind, blocks, dense.shape[1]).astype(np.float64)
    return np.abs(dense - minimum) + np.abs(minimum)


def roundings(kind: str, columns: int) -> int:
    """Float32 roundings on the way of a product to its output: two sums a part at most, its scales and the weight itself."""
    return 2 * columns // PART.get(kind, 32) + 6 if kind in QUANTISED else columns + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs,columns", [(16, 32), (40, 96), (7, 64), (24, 320), (130, 288)])
def test_close_to_float64(bench: Any, isa: str, kind: str, outputs: int, columns: int) -> None:
    """Every format is within its float32 roundings of the exact product of its (quantised) activations and its weights."""
    columns = columns_of(kind, columns)
    raw, dense = bench.random_weights(kind, outputs, columns)
    x = activations(11, columns)
    exact_x = as_integers(x) if kind in QUANTISED else x.astype(np.float64)
    exact = exact_x @ dense.astype(np.float64).T
    bound = 2.0**-24 * roundings(kind, columns) * (np.abs(exact_x) @ magnitudes(kind, raw, dense).T) + 1e-30
    got = bench.linear(bench.ops(isa), x, [raw])
    assert np.all(np.abs(got - exact) <= bound)


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_activations_are_close_to_float(bench: Any, isa: str, kind: str) -> None:
    """The integers cost at most half a scale an activation: 1 / 65534 of the largest of its 32."""
    columns = columns_of(kind, 192)
    raw, dense = bench.random_weights(kind, 48, columns)
    x = activations(5, columns)
    half_scale = np.abs(x).reshape(5, -1, 32).max(axis=-1).repeat(32, axis=-1).astype(np.float64) / 65534
    bound = 1.01 * half_scale @ np.abs(dense.astype(np.float64)).T
    bound += 2.0**-24 * roundings(kind, columns) * (np.abs(x).astype(np.float64) @ magnitudes(kind, raw, dense).T)
    got = bench.linear(bench.ops(isa), x, [raw])
    assert np.all(np.abs(got - x.astype(np.float64) @ dense.astype(np.float64).T) <= bound)


@pytest.mark.parametrize("kind", OF_32)
def test_one_block_is_exact(bench: Any, isa: str, kind: str) -> None:
    """Integer activations that reach 32767 times random weights of scale 1 give the exact integer, rounded once."""
    raw = bench.raw("integers", kind, (48, 32), bench.random_blocks(kind, 48, np.random.default_rng(3), 1.0, 0.0))
    dense = dequantise(kind, raw.data, 32).astype(np.int64)
    x = np.random.default_rng(5).integers(-32767, 32768, (20, 32))
    x[np.arange(20), np.arange(20)] = 32767
    assert np.array_equal(bench.linear(bench.ops(isa), x.astype(np.float32), [raw]), (x @ dense.T).astype(np.float32))


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F])
@pytest.mark.parametrize("kind", QUANTISED)
def test_extreme_integers_do_not_saturate(bench: Any, isa: str, kind: str, fill: int) -> None:
    """The largest weights times the largest activations of either sign give the exact integers, a rounding or two apart at most
    where their sum has more bits than a float32."""
    columns = columns_of(kind, 64)
    blocks = bench.random_blocks(kind, 16 * columns // BY_NAME[kind].block, np.random.default_rng(0), 1.0, 0.0)
    kept = [(place, blocks[:, place : place + 2].copy()) for place in bench.halves[kind]]
    blocks[:] = fill
    for place, half in kept:
        blocks[:, place : place + 2] = half
    raw = bench.raw("extreme", kind, (16, columns), blocks)
    dense = dequantise(kind, raw.data, columns).astype(np.float64)
    for sign in (1, -1):
        x = np.full((3, columns), 32767 * sign, np.float32)
        x[1, ::2] *= -1
        got, exact = bench.linear(bench.ops(isa), x, [raw]), x.astype(np.float64) @ dense.T
        if kind in ("Q4_0", "Q4_1", "Q5_0", "Q8_0"):
            assert np.array_equal(got, exact.astype(np.float32))
        magnitude = np.abs(x).astype(np.float64) @ magnitudes(kind, raw, dense.astype(np.float32)).T
        assert np.all(np.abs(got - exact) <= 2.0**-24 * roundings(kind, columns) * magnitude)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_bits(bench: Any, isa: str, kind: str) -> None:
    """A row's bits are the same alone and among 2 .. 40 others, at every place, on every instruction set: also where weights of
    few bits are expanded for the rows, 256 at a time and what is left."""
    columns = columns_of(kind, 288)
    raw, _ = bench.random_weights(kind, 40, columns)
    x = activations(40, columns)
    ops = bench.ops(isa)
    expected = bench.linear(bench.ops("portable", 1), x, [raw])
    for rows in [*range(1, 20), 23, 31, 32, 33, 40]:
        assert bench.linear(ops, x[:rows], [raw]).tobytes() == expected[:rows].tobytes()
        shifted = np.roll(x, rows, axis=0)
        assert bench.linear(ops, shifted, [raw]).tobytes() == np.roll(expected, rows, axis=0).tobytes()


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 5])
def test_threads_do_not_change_bits(bench: Any, isa: str, threads: int, kind: str) -> None:
    """Work is divided over columns and rows only."""
    columns = columns_of(kind, 96)
    raw, _ = bench.random_weights(kind, 200, columns)
    x = activations(33, columns)
    got = bench.linear(bench.ops(isa, threads), x, [raw])
    assert got.tobytes() == bench.linear(bench.ops("portable", 1), x, [raw]).tobytes()


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_activations_reach_every_output(bench: Any, isa: str, kind: str, broken: float) -> None:
    """A NaN or an infinity at any of the 32 places of a block makes all outputs of its row NaN, and no others."""
    columns = columns_of(kind, 64)
    raw, _ = bench.random_weights(kind, 24, columns)
    x = np.concatenate([activations(32, columns), activations(4, columns, 2)])
    for place in range(32):
        x[place, 32 * (place % 2) + place] = broken
    got = bench.linear(bench.ops(isa), x, [raw])
    assert np.isnan(got[:32]).all() and np.isfinite(got[32:]).all()
    assert got[32:].tobytes() == bench.linear(bench.ops(isa), x[32:], [raw]).tobytes()


def test_tiny_and_zero_blocks(bench: Any, isa: str) -> None:
    """Blocks of zeros, of denormals, and near the largest float stay finite."""
    raw, dense = bench.random_weights("Q8_0", 16, 64)
    x = np.zeros((4, 64), np.float32)
    x[1] = 1e-40
    x[2, :16], x[2, 16:] = 1e-20, 1e30
    x[3, 5] = 1e-25
    got = bench.linear(bench.ops(isa), x, [raw])
    assert np.isfinite(got).all() and not got[:2].any()
    exact = as_integers(x[2:]) @ dense.astype(np.float64).T
    assert np.allclose(got[2:], exact, rtol=1e-4, atol=1e-30)


def test_parts_side_by_side(bench: Any, isa: str) -> None:
    """Parts of different types and odd widths are one linear with their outputs in order."""
    parts = [bench.random_weights(kind, rows, 64, rows) for kind, rows in (("Q4_1", 24), ("Q8_0", 9), ("F32", 5), ("BF16", 17))]
    x = activations(6, 64)
    got = bench.linear(bench.ops(isa), x, [raw for raw, _ in parts])
    alone = [bench.linear(bench.ops(isa), x, [raw]) for raw, _ in parts]
    assert got.tobytes() == np.ascontiguousarray(np.concatenate(alone, axis=1)).tobytes()


def test_long_weights_are_packed_in_pieces(bench: Any, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that is packed 16 or 32 rows at a time, by several threads, is the one that is packed at once."""
    for kind in ("Q4_0", "Q6_K", "F16"):
        raw, _ = bench.random_weights(kind, 133, 256)
        x = activations(3, 256)
        whole = bench.linear(bench.ops(isa), x, [raw])
        for nbytes in (1, 9000):
            monkeypatch.setattr(ops_module, "PACK_BYTES", nbytes)
            assert bench.linear(bench.ops(isa, 3), x, [raw]).tobytes() == whole.tobytes()
        monkeypatch.undo()


@pytest.mark.parametrize("kind", library.TYPES)
def test_packed_sizes_are_known_beforehand(kind: str) -> None:
    """What is said of a model's memory before it is loaded."""
    assert library.native_library().helexa_packed_bytes(library.TYPES[kind], 32, 512) == packed_bytes(kind, 32 * 512)


def test_instruction_sets_are_listed() -> None:
    """The portable one is always there, last."""
    assert library.instruction_sets()[-1] == "portable"
