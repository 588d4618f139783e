"""Linears of the native ops: against float64, and bit for bit over rows, places, threads and instruction sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helexa.formats.ggml_types import dequantise
from workers.ops.native import library

KINDS = ["Q4_0", "Q4_1", "Q8_0", "F32", "F16", "BF16"]
QUANTISED = ["Q4_0", "Q4_1", "Q8_0"]


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
    """The sum of the magnitudes a weight is made of: what roundings are relative to. Q4_1's minimum is multiplied apart."""
    if kind != "Q4_1":
        return np.abs(dense.astype(np.float64))
    blocks = raw.data.reshape(-1, 20).copy()
    blocks[:, 4:] = 0
    minimum = dequantise(kind, blocks.reshape(-1), dense.shape[1]).astype(np.float64)
    return np.abs(dense - minimum) + np.abs(minimum)


def roundings(kind: str, columns: int) -> int:
    """Float32 roundings on the way of a product to its output: two sums a block at most, its scales and the weight itself."""
    return 2 * columns // 32 + 4 if kind in QUANTISED else columns + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs,columns", [(16, 32), (40, 96), (7, 64), (130, 288)])
def test_close_to_float64(bench: Any, isa: str, kind: str, outputs: int, columns: int) -> None:
    """Every format is within its float32 roundings of the exact product of its (quantised) activations and its weights."""
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
    raw, dense = bench.random_weights(kind, 48, 192)
    x = activations(5, 192)
    half_scale = np.abs(x).reshape(5, -1, 32).max(axis=-1).repeat(32, axis=-1).astype(np.float64) / 65534
    bound = 1.01 * half_scale @ np.abs(dense.astype(np.float64)).T
    bound += 2.0**-24 * roundings(kind, 192) * (np.abs(x).astype(np.float64) @ magnitudes(kind, raw, dense).T)
    got = bench.linear(bench.ops(isa), x, [raw])
    assert np.all(np.abs(got - x.astype(np.float64) @ dense.astype(np.float64).T) <= bound)


@pytest.mark.parametrize("kind", QUANTISED)
def test_one_block_is_exact(bench: Any, isa: str, kind: str) -> None:
    """Integer activations that reach 32767 times random weights of scale 1 give the exact integer, rounded once."""
    raw, _ = bench.random_weights(kind, 48, 32)
    blocks = raw.data.reshape(48, -1).copy()
    blocks[:, : 4 if kind == "Q4_1" else 2] = np.array([1.0, 0.0][: 2 if kind == "Q4_1" else 1], np.float16).view(np.uint8)
    raw = bench.raw("integers", kind, (48, 32), blocks)
    dense = dequantise(kind, raw.data, 32).astype(np.int64)
    x = np.random.default_rng(5).integers(-32767, 32768, (20, 32))
    x[np.arange(20), np.arange(20)] = 32767
    assert np.array_equal(bench.linear(bench.ops(isa), x.astype(np.float32), [raw]), (x @ dense.T).astype(np.float32))


@pytest.mark.parametrize("kind", QUANTISED)
def test_extreme_integers_do_not_saturate(bench: Any, isa: str, kind: str) -> None:
    """The largest weights times the largest activations of either sign give the exact integers."""
    columns = 64
    block = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    for fill in (0x00, 0xFF, 0x80, 0x7F):
        blocks = np.full((16 * columns // 32, block), fill, np.uint8)
        blocks[:, : 4 if kind == "Q4_1" else 2] = np.array([1.0, 0.0][: 2 if kind == "Q4_1" else 1], np.float16).view(np.uint8)
        raw = bench.raw("extreme", kind, (16, columns), blocks)
        dense = dequantise(kind, raw.data, columns).astype(np.float64)
        for sign in (1, -1):
            x = np.full((3, columns), 32767 * sign, np.float32)
            x[1, ::2] *= -1
            assert np.array_equal(bench.linear(bench.ops(isa), x, [raw]), (x.astype(np.float64) @ dense.T).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_bits(bench: Any, isa: str, kind: str) -> None:
    """A row's bits are the same alone and among 2 .. 40 others, at every place, on every instruction set."""
    raw, _ = bench.random_weights(kind, 40, 96)
    x = activations(40, 96)
    ops = bench.ops(isa)
    expected = bench.linear(bench.ops("portable", 1), x, [raw])
    for rows in [*range(1, 20), 23, 31, 32, 33, 40]:
        assert bench.linear(ops, x[:rows], [raw]).tobytes() == expected[:rows].tobytes()
        shifted = np.roll(x, rows, axis=0)
        assert bench.linear(ops, shifted, [raw]).tobytes() == np.roll(expected, rows, axis=0).tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 5])
def test_threads_do_not_change_bits(bench: Any, isa: str, threads: int) -> None:
    """Work is divided over columns and rows only."""
    raw, _ = bench.random_weights("Q4_1", 200, 96)
    x = activations(33, 96)
    got = bench.linear(bench.ops(isa, threads), x, [raw])
    assert got.tobytes() == bench.linear(bench.ops("portable", 1), x, [raw]).tobytes()


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_activations_reach_every_output(bench: Any, isa: str, kind: str, broken: float) -> None:
    """A NaN or an infinity at any of the 32 places of a block makes all outputs of its row NaN, and no others."""
    raw, _ = bench.random_weights(kind, 24, 64)
    x = np.concatenate([activations(32, 64), activations(4, 64, 2)])
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


def test_instruction_sets_are_listed() -> None:
    """The portable one is always there, last."""
    assert library.instruction_sets()[-1] == "portable"
