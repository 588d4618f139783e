"""Row ops of the native ops against float64: embedding, norm, add, activation, rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.ops.native import library
from workers.ops.protocol import Rope


def values(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
    return (np.random.default_rng(columns).standard_normal((rows, columns)) * scale).astype(np.float32)


@pytest.mark.parametrize("kind", library.TYPES)
def test_embedding_is_the_dequantised_row(bench: Any, isa: str, kind: str) -> None:
    """Bit for bit the format's own definition, but for the sign of a zero."""
    raw, dense = bench.random_weights(kind, 21, 512)
    ops = bench.ops(isa)
    table = ops.matrix([raw])
    got = ops.run(lambda step: step.gather_logit_rows(step.embed(table)), bench.inputs(21))
    assert (got + 0).tobytes() == (dense + 0).tobytes()


@pytest.mark.parametrize("columns", [8, 16, 24, 41, 576])
def test_rms_norm(bench: Any, isa: str, columns: int) -> None:
    """Within 3 + columns / 8 roundings of float64, and the same bits on every instruction set."""
    x, weight = values(9, columns, 3), values(1, columns)[0]

    def normed(ops: Any) -> NDArray[np.float32]:
        vector = ops.vector(bench.raw("w", "F32", (columns,), weight))
        got: NDArray[np.float32] = bench.rows(ops, x, lambda step, rows: step.rms_norm(rows, vector, 1e-5))
        return got

    got, wide = normed(bench.ops(isa)), x.astype(np.float64)
    exact = wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + 1e-5) * weight
    assert np.allclose(got, exact, rtol=2.0**-24 * (3 + columns / 8), atol=0)
    assert got.tobytes() == normed(bench.ops("portable", 1)).tobytes()


def test_add_then_norm_is_the_fused_one(bench: Any, isa: str) -> None:
    """The recorder joins them; the sum and the norm keep the bits of the separate ops."""
    x, weight = values(10, 40), values(1, 40)[0]

    def forward_of(ops: Any) -> NDArray[np.float32]:
        vector = ops.vector(bench.raw("w", "F32", (40,), weight))

        def body(step: Any, rows: Any) -> Any:
            total = step.add(rows, step.rms_norm(rows, vector, 1e-6))
            return step.add(total, step.rms_norm(total, vector, 1e-6))

        got: NDArray[np.float32] = bench.rows(ops, x, body)
        return got

    assert forward_of(bench.ops(isa)).tobytes() == forward_of(bench.ops(isa, direct=True)).tobytes()


def test_silu_mul(bench: Any, isa: str) -> None:
    """Within 8 ulp of float64 where exp(-gate) is a float, and the limits beyond."""
    gate = np.concatenate([np.linspace(-80, 80, 60), [0.0, -0.0, 300.0, -300.0]]).astype(np.float32)
    gate_up = np.stack([np.concatenate([gate, values(1, 64)[0]])] * 3)
    got = bench.rows(bench.ops(isa), gate_up, lambda step, rows: step.silu_mul(rows))
    wide = gate.astype(np.float64)
    exact = wide / (1 + np.exp(-wide)) * gate_up[0, 64:]
    assert np.allclose(got[0], exact, rtol=1e-6, atol=1e-30)
    assert got.tobytes() == bench.rows(bench.ops("portable", 1), gate_up, lambda step, rows: step.silu_mul(rows)).tobytes()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_values_stay_broken(bench: Any, isa: str, broken: float) -> None:
    """Norm and activation pass a NaN or an infinity on as something that is not finite."""
    x = values(32, 32)
    x[np.arange(32), np.arange(32)] = broken
    ops = bench.ops(isa)
    vector = ops.vector(bench.raw("w", "F32", (32,), np.ones(32, np.float32)))
    normed = bench.rows(ops, x, lambda step, rows: step.rms_norm(rows, vector, 1e-5))
    assert not np.isfinite(normed).all(axis=-1).any()
    active = bench.rows(ops, x, lambda step, rows: step.silu_mul(rows))
    assert not np.isfinite(active).all(axis=-1).any()


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("head_dim,rotary", [(8, 8), (16, 8), (64, 64), (24, 24)])
def test_rotary_embedding(bench: Any, isa: str, neox: bool, head_dim: int, rotary: int) -> None:
    """Queries come out rotated by their positions, columns past the rotary ones as they were."""
    heads, kv_heads, rows = 3, 1, 40
    ops = bench.ops(isa)
    ops.allocate_kv(1, 16, kv_heads, head_dim)
    rope = Rope(10000.0 ** (-np.arange(0, rotary, 2) / rotary), neox)
    x = values(rows, (heads + 2 * kv_heads) * head_dim)
    got = bench.rows(ops, x, lambda step, qkv: step.rope_kv_write(qkv, 0, heads, kv_heads, head_dim, rope))
    angles = np.arange(rows)[:, None, None] * rope.inv_freq
    half = rotary // 2
    first, second = (slice(0, half), slice(half, rotary)) if neox else (slice(0, rotary, 2), slice(1, rotary, 2))
    exact = x.reshape(rows, -1, head_dim)[:, :heads].astype(np.float64)
    a, b = exact[..., first].copy(), exact[..., second].copy()
    exact[..., first], exact[..., second] = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    assert np.allclose(got, exact.reshape(rows, -1), rtol=0, atol=1e-6)
    assert np.array_equal(got.reshape(rows, heads, head_dim)[..., rotary:], x.reshape(rows, -1, head_dim)[:, :heads, rotary:])
