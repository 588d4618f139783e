"""Paged attention of the native ops: against float64, and bit for bit over chunks, neighbours, blocks and instruction sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.ops.protocol import Rope

SHAPES = [(3, 1, 16), (4, 4, 8), (6, 2, 64), (9, 3, 24), (10, 1, 16)]  # H, K, D


def qkv_rows(rows: int, heads: int, kv_heads: int, head_dim: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, (heads + 2 * kv_heads) * head_dim), dtype=np.float32)


def attend(bench: Any, ops: Any, x: NDArray[np.float32], shape: tuple[int, int, int], inputs: Any = None) -> NDArray[np.float32]:
    heads, kv_heads, head_dim = shape
    rope = Rope(np.zeros(head_dim // 2), True)  # no rotation

    def body(step: Any, qkv: Any) -> Any:
        q = step.rope_kv_write(qkv, 1, heads, kv_heads, head_dim, rope)
        return step.attention(q, 1, heads, kv_heads, head_dim)

    result: NDArray[np.float32] = bench.rows(ops, x, body, inputs)
    return result


def exact_attention(x: NDArray[np.float32], heads: int, kv_heads: int, head_dim: int) -> NDArray[np.float64]:
    """One sequence from position 0, keys and values rounded to float16."""
    by_head = x.reshape(len(x), heads + 2 * kv_heads, head_dim)
    q = by_head[:, :heads].astype(np.float64)
    k, v = np.split(by_head[:, heads:].astype(np.float16).astype(np.float64), 2, axis=1)
    k, v = k.repeat(heads // kv_heads, axis=1), v.repeat(heads // kv_heads, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(head_dim)
    scores[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: NDArray[np.float64] = np.einsum("hnm,mhd->nhd", weights, v)
    return out.reshape(len(x), -1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 50])
def test_close_to_float64(bench: Any, isa: str, shape: tuple[int, int, int], rows: int) -> None:
    """Within 1e-5 of float64 over the same float16 keys and values (values are standard normal)."""
    ops = bench.ops(isa)
    ops.allocate_kv(2, 16, shape[1], shape[2])
    x = qkv_rows(rows, *shape)
    assert np.allclose(attend(bench, ops, x, shape), exact_attention(x, *shape), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_neighbours_and_threads_do_not_change_bits(bench: Any, isa: str, shape: tuple[int, int, int]) -> None:
    """One sequence of 50 rows: at once, in chunks, beside another, in other blocks, on 1 .. 5 threads: the same bits."""
    x = qkv_rows(50, *shape)
    reference = bench.ops("portable", 1)
    reference.allocate_kv(2, 40, shape[1], shape[2])
    expected = attend(bench, reference, x, shape)
    for threads in (1, 2, 3, 5):
        ops = bench.ops(isa, threads)
        ops.allocate_kv(2, 40, shape[1], shape[2])
        assert attend(bench, ops, x, shape).tobytes() == expected.tobytes()
    for chunks in ([1] * 50, [7, 9, 16, 18], [16, 16, 16, 2], [49, 1]):
        ops = bench.ops(isa)
        ops.allocate_kv(2, 40, shape[1], shape[2])
        start = 0
        for count in chunks:
            beside = qkv_rows(5, *shape, seed=start + 1)
            both = np.concatenate([beside, x[start : start + count]])
            inputs = bench.inputs(5 + count, [(0, 5), (start, count)], shift=11)
            assert attend(bench, ops, both, shape, inputs)[5:].tobytes() == expected[start : start + count].tobytes()
            start += count


def test_a_broken_later_row_does_not_reach_earlier_ones(bench: Any, isa: str) -> None:
    """A NaN in row 20's key and value spoils rows 20 and on of its sequence, never those before, in the same block or not."""
    shape = (3, 1, 16)
    x = qkv_rows(40, *shape)
    ops = bench.ops(isa)
    ops.allocate_kv(2, 16, 1, 16)
    sound = attend(bench, ops, x, shape)
    x[20, 48:] = np.nan
    got = attend(bench, ops, x, shape)
    assert got[:20].tobytes() == sound[:20].tobytes() and np.isnan(got[20:]).all()


@pytest.mark.parametrize("part", ["key", "value"])
def test_overflow_to_float16_is_seen(bench: Any, isa: str, part: str) -> None:
    """A key or value too large for float16 becomes infinite, and every row that sees it is not finite."""
    shape = (2, 1, 16)
    x = np.abs(qkv_rows(20, *shape))
    x[4, 32 if part == "key" else 48] = -1e6
    ops = bench.ops(isa)
    ops.allocate_kv(2, 16, 1, 16)
    got = attend(bench, ops, x, shape)
    assert np.isfinite(got[:4]).all() and not np.isfinite(got[4:]).all(axis=-1).any()


def test_stale_blocks_do_not_matter(bench: Any, isa: str) -> None:
    """What an earlier sequence left in a block past this one's positions is never read into a sum."""
    shape = (3, 1, 16)
    ops = bench.ops(isa)
    ops.allocate_kv(2, 16, 1, 16)
    x = qkv_rows(9, *shape)
    fresh = attend(bench, ops, x, shape)
    attend(bench, ops, np.full((16, 80), np.nan, np.float32), shape)
    assert attend(bench, ops, x, shape).tobytes() == fresh.tobytes()


def test_bytes_per_block_is_what_is_allocated(bench: Any, isa: str) -> None:
    """Two float16 of 16 positions a layer, head and column."""
    ops = bench.ops(isa)
    assert ops.bytes_per_block(3, 2, 64) == 3 * 2 * 2 * 16 * 64 * 2
    assert ops.allocate_kv(3, 5, 2, 64) == 5 * ops.bytes_per_block(3, 2, 64)
