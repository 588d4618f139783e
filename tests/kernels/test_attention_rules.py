"""Attention with a sliding window, a scale and a soft cap, on every op set: against float64, and the law of a row's own bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.ops.protocol import Rope


class Rule(NamedTuple):
    scale: float | None = None
    window: int = 0
    soft_cap: float = 0.0


SHAPES = [(6, 2, 16), (4, 4, 8), (9, 1, 24)]  # H, K, D
RULES = [Rule(window=1), Rule(window=7), Rule(window=16), Rule(0.2, 23), Rule(soft_cap=1.5), Rule(1.7, 40, 2.0), Rule(0.05)]
ROWS = 70


def qkv_rows(rows: int, shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.float32]:
    heads, kv_heads, head_dim = shape
    return np.random.default_rng(seed).standard_normal((rows, (heads + 2 * kv_heads) * head_dim), dtype=np.float32)


def attend(bench: Any, ops: Any, x: NDArray[np.float32], shape: tuple[int, int, int], rule: Rule, inputs: Any = None) -> Any:
    nothing_turns = Rope(np.empty(0), True)

    def body(step: Any, qkv: Any) -> Any:
        q = step.rope_kv_write(qkv, 0, *shape, nothing_turns)
        return step.attention(q, 0, *shape, scale=rule.scale, window=rule.window, soft_cap=rule.soft_cap)

    return bench.rows(ops, x, body, inputs)


def exact(x: NDArray[np.float32], shape: tuple[int, int, int], rule: Rule) -> NDArray[np.float64]:
    """One sequence from position 0, keys and values rounded to float16."""
    heads, kv_heads, head_dim = shape
    by_head = x.reshape(len(x), heads + 2 * kv_heads, head_dim)
    q = by_head[:, :heads].astype(np.float64)
    k, v = np.split(by_head[:, heads:].astype(np.float16).astype(np.float64), 2, axis=1)
    k, v = k.repeat(heads // kv_heads, axis=1), v.repeat(heads // kv_heads, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) * (rule.scale or head_dim**-0.5)
    if rule.soft_cap:
        scores = rule.soft_cap * np.tanh(scores / rule.soft_cap)
    behind = np.arange(len(x))[:, None] - np.arange(len(x))
    scores[:, (behind < 0) | (behind >= (rule.window or len(x)))] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: NDArray[np.float64] = np.einsum("hnm,mhd->nhd", weights, v)
    return out.reshape(len(x), -1)


def fresh(bench: Any, implementation: str, shape: tuple[int, int, int], threads: int = 2) -> Any:
    ops = bench.ops(implementation, threads)
    ops.allocate_kv(1, 40, shape[1], shape[2])
    return ops


def pieces(bench: Any, ops: Any, x: NDArray[np.float32], counts: list[int], run: Any) -> list[NDArray[np.float32]]:
    """`run` on chunks of one sequence, a step each."""
    start, got = 0, []
    for count in counts:
        got.append(run(x[start : start + count], bench.inputs(count, [(start, count)])))
        start += count
    return got


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_float64(bench: Any, implementation: str, shape: tuple[int, int, int], rule: Rule) -> None:
    """Within 2e-5 of float64 over the same float16 keys and values, with windows below, at and above a block."""
    ops, x = fresh(bench, implementation, shape), qkv_rows(ROWS, shape)
    got = pieces(bench, ops, x, [60, 10], lambda rows, inputs: attend(bench, ops, rows, shape, rule, inputs))
    assert np.allclose(np.concatenate(got), exact(x, shape, rule), rtol=0, atol=2e-5)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_chunks_neighbours_and_threads_do_not_change_bits(bench: Any, implementation: str, rule: Rule) -> None:
    """70 rows in chunks, one by one, beside another sequence in other blocks, on 1 .. 3 threads: the same bits."""
    shape = SHAPES[0]
    x, beside = qkv_rows(ROWS, shape), qkv_rows(5, shape, 1)
    ops = fresh(bench, implementation, shape)
    expected = np.concatenate(
        pieces(bench, ops, x, [64, 6], lambda rows, inputs: attend(bench, ops, rows, shape, rule, inputs))
    ).tobytes()
    for threads, counts in ((1, [1] * ROWS), (3, [17, 1, 30, 2, 20])):
        ops = fresh(bench, implementation, shape, threads)
        start, got = 0, []
        for count in counts:
            both = np.concatenate([beside, x[start : start + count]])
            inputs = bench.inputs(5 + count, [(0, 5), (start, count)], shift=11)
            got.append(attend(bench, ops, both, shape, rule, inputs)[5:])
            start += count
        assert np.concatenate(got).tobytes() == expected


def test_instruction_sets_give_the_same_bits(bench: Any, isa: str) -> None:
    """Every rule, against the portable one."""
    for shape in SHAPES:
        x = qkv_rows(60, shape)
        for rule in RULES:
            got, expected = (attend(bench, fresh(bench, name, shape), x, shape, rule) for name in (isa, "portable"))
            assert got.tobytes() == expected.tobytes()


def test_a_window_as_long_as_the_prompt_is_no_window(bench: Any, implementation: str) -> None:
    """The plain kernel and the one with rules agree bit for bit where the rule is empty."""
    shape = SHAPES[0]
    ops, x = fresh(bench, implementation, shape), qkv_rows(60, shape)
    assert attend(bench, ops, x, shape, Rule(window=60)).tobytes() == attend(bench, ops, x, shape, Rule()).tobytes()


def test_what_lies_before_the_window_does_not_matter(bench: Any, isa: str) -> None:
    """A broken key and value spoil only the rows whose window still holds them."""
    shape, rule = (2, 1, 16), Rule(window=9)
    ops, x = fresh(bench, isa, shape), qkv_rows(40, shape)
    sound = attend(bench, ops, x, shape, rule)
    x[5, 32:] = np.nan
    got = attend(bench, ops, x, shape, rule)
    assert np.isnan(got[5:14]).all()
    assert got[:5].tobytes() == sound[:5].tobytes() and got[14:].tobytes() == sound[14:].tobytes()
