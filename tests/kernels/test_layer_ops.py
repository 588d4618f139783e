"""Ops that some architectures add: bias, head norms, scale, soft cap, gelu; on every op set against float64, and bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.ops.protocol import RawTensor

Body = Callable[[Any, Any], Any]

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 80, 3, 1, 16  # WIDTH = (H + 2 K) D


def values(rows: int, columns: int = WIDTH, scale: float = 1.0) -> NDArray[np.float32]:
    return (np.random.default_rng(rows * columns).standard_normal((rows, columns)) * scale).astype(np.float32)


def vector(bench: Any, ops: Any, length: int, seed: int) -> Any:
    weight = np.random.default_rng(seed).standard_normal(length).astype(np.float32)
    return weight, ops.vector(bench.raw("v", "F32", (length,), weight))


def exact_norm(x: NDArray[np.float64], weight: NDArray[np.float32], eps: float) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return normed


def test_bias_is_added_last(bench: Any, implementation: str) -> None:
    """Bit for bit the linear without it, plus the bias."""
    ops, x = bench.ops(implementation), values(33, 64)
    weight = ops.matrix([bench.random_weights("F32", rows, 64, rows)[0] for rows in (40, 8)])
    bias, packed = vector(bench, ops, 48, 3)
    plain = bench.rows(ops, x, lambda step, rows: step.linear(rows, weight))
    assert bench.rows(ops, x, lambda step, rows: step.linear(rows, weight, packed)).tobytes() == (plain + bias).tobytes()


@pytest.mark.parametrize("gate", ["silu_mul", "gelu_tanh_mul"])
def test_a_bias_before_the_gate(bench: Any, implementation: str, gate: str) -> None:
    """Gate and up with a bias are not joined with their activation: the result is that of the separate ops."""
    ops, x = bench.ops(implementation), values(9, 64)
    weight = ops.matrix([bench.random_weights("F32", 32, 64, seed)[0] for seed in (1, 2)])
    _, packed = vector(bench, ops, 64, 3)
    gate_up = bench.rows(ops, x, lambda step, rows: step.linear(rows, weight, packed))
    expected = bench.rows(ops, gate_up, lambda step, rows: getattr(step, gate)(rows))
    got = bench.rows(ops, x, lambda step, rows: getattr(step, gate)(step.linear(rows, weight, packed)))
    assert got.tobytes() == expected.tobytes()


def test_head_norms(bench: Any, implementation: str) -> None:
    """Each query and key head by itself, within float32's error; values as they were."""
    ops, x = bench.ops(implementation), values(12, scale=3)
    (q_weight, q), (k_weight, k) = vector(bench, ops, HEAD_DIM, 1), vector(bench, ops, HEAD_DIM, 2)
    got = bench.rows(ops, x, lambda step, rows: step.norm_heads(rows, q, k, HEADS, KV_HEADS, HEAD_DIM, 1e-6))
    wide = x.astype(np.float64).reshape(12, HEADS + 2 * KV_HEADS, HEAD_DIM)
    wide[:, :HEADS] = exact_norm(wide[:, :HEADS], q_weight, 1e-6)
    wide[:, HEADS : HEADS + KV_HEADS] = exact_norm(wide[:, HEADS : HEADS + KV_HEADS], k_weight, 1e-6)
    assert np.allclose(got, wide.reshape(12, -1), rtol=1e-6, atol=1e-7)
    assert got[:, -KV_HEADS * HEAD_DIM :].tobytes() == x[:, -KV_HEADS * HEAD_DIM :].tobytes()


def test_scale_and_soft_cap(bench: Any, implementation: str) -> None:
    """A product of float32, and cap * tanh(x / cap) within 4 ulp, small values included."""
    ops = bench.ops(implementation)
    x = np.concatenate([values(1)[0] * 100, np.linspace(-1e-3, 1e-3, 40), np.linspace(-40, 40, 40)]).astype(np.float32)[None]
    assert bench.rows(ops, x, lambda step, rows: step.scale(rows, 33.941)).tobytes() == (x * np.float32(33.941)).tobytes()
    got = bench.rows(ops, x, lambda step, rows: step.soft_cap(rows, 30.0))
    assert np.allclose(got, 30 * np.tanh(x.astype(np.float64) / 30), rtol=2.0**-22, atol=0)


def test_gelu(bench: Any, implementation: str) -> None:
    """The tanh form within 1e-6, also where tanh is all but -1, and the limits beyond."""
    gate = np.concatenate([np.linspace(-5, 5, 99), [0.0, -0.0, -20.0, 1e20, -1e20]]).astype(np.float32)
    gate_up = np.concatenate([gate, np.full(len(gate), 1.5, np.float32)])[None]
    got = bench.rows(bench.ops(implementation), gate_up, lambda step, rows: step.gelu_tanh_mul(rows))
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        u = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
        expected = wide / (1 + np.exp(-2 * u)) * 1.5  # gate / 2 * (1 + tanh(u)), without its cancellation
    assert np.allclose(got[0], expected, rtol=2e-6, atol=1e-10)


BODIES: dict[str, Body] = {
    "scale": lambda step, x: step.scale(x, 1.3),
    "soft_cap": lambda step, x: step.soft_cap(x, 2.0),
    "gelu_tanh_mul": lambda step, x: step.gelu_tanh_mul(x),
    "norm_heads": lambda step, x: step.norm_heads(x, *_head_weights(step), HEADS, KV_HEADS, HEAD_DIM, 1e-6),
}


def _head_weights(ops: Any) -> list[Any]:
    ones = np.ones(HEAD_DIM, np.float32).view(np.uint8)
    return [ops.vector(RawTensor("w", "F32", (HEAD_DIM,), ones))] * 2


@pytest.mark.parametrize("name", BODIES)
def test_a_rows_bits_are_its_own(bench: Any, implementation: str, name: str) -> None:
    """Alone and at every place among 40 rows, recorded or direct, on 1 .. 3 threads."""
    x = values(40)
    whole = bench.rows(bench.ops(implementation), x, BODIES[name])
    for threads in (1, 3):
        ops = bench.ops(implementation, threads, direct=threads == 1)
        assert bench.rows(ops, x, BODIES[name]).tobytes() == whole.tobytes()
    for row in range(0, 40, 7):
        assert bench.rows(bench.ops(implementation), x[row : row + 1], BODIES[name]).tobytes() == whole[row].tobytes()


@pytest.mark.parametrize("name", BODIES)
def test_instruction_sets_give_the_same_bits(bench: Any, isa: str, name: str) -> None:
    """Against the portable one, over magnitudes from 1e-3 to 1e3."""
    x = np.concatenate([values(7, scale=10.0**power) for power in range(-3, 4)])
    got, expected = (bench.rows(bench.ops(item), x, BODIES[name]) for item in (isa, "portable"))
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_broken_values_stay_broken(bench: Any, implementation: str, name: str, broken: float) -> None:
    """What is not finite comes out as something that is not finite, at each lane; other rows do not notice."""
    x = np.abs(values(64)) + 1
    sound = bench.rows(bench.ops(implementation), x, BODIES[name])
    x[np.arange(1, 33), np.arange(32)] = broken
    with np.errstate(all="ignore"):
        got = bench.rows(bench.ops(implementation), x, BODIES[name])
    assert not np.isfinite(got[1:33]).all(axis=-1).any()
    assert got[0].tobytes() == sound[0].tobytes() and got[33:].tobytes() == sound[33:].tobytes()


def test_ops_in_place_are_the_separate_ones(bench: Any, isa: str) -> None:
    """A program lets scale, head norms and soft cap write over the linear's rows: the bits are those of ops called one by one,
    also where another op reads the linear's rows too."""
    x = values(20, 64)

    def run(ops: Any) -> bytes:
        weight = ops.matrix([bench.random_weights("F32", 80, 64)[0]])

        def body(step: Any, rows: Any) -> Any:
            qkv = step.linear(step.scale(rows, 2.0), weight)
            normed = step.norm_heads(qkv, *_head_weights(step), HEADS, KV_HEADS, HEAD_DIM, 1e-6)
            return step.soft_cap(step.linear(step.add(normed, qkv), square), 3.0)

        square = ops.matrix([bench.random_weights("F32", 80, 80)[0]])
        result: bytes = bench.rows(ops, x, body).tobytes()
        return result

    assert run(bench.ops(isa)) == run(bench.ops(isa, direct=True))
