"""Launches attention.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import ATTENTION, HEAD_DIMS, attention_variant
from kernels_cupy.rope_kv.launcher import BLOCK_SIZE, Paged

CHUNK = 128  # positions
WARPS = ATTENTION.threads // 32  # heads a block
ENOUGH_WARPS = 2048  # that fill a large GPU without dividing positions
PARTIALS_MOST = 256 * 2**20  # bytes


def partials_of(rows: int, heads: int, head_dim: int, table_width: int) -> tuple[int, ...]:
    """The shape of the float32 memory with which a step's positions are divided among blocks; empty where they are better not: one chunk
    alone, rows enough without, or more memory than it is worth. Either way gives the same bits."""
    chunks = checks.ceil_div(table_width * BLOCK_SIZE, CHUNK)
    shape = (rows, heads, chunks, head_dim + 2)
    small = rows * heads * chunks * (head_dim + 2) * 4 <= PARTIALS_MOST
    return shape if chunks > 1 and rows * heads < ENOUGH_WARPS and small and chunks <= checks.GRID_MOST else ()


def attention(
    device: Device,
    q: torch.Tensor,
    paged: Paged,
    out: torch.Tensor,
    scale: float | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    partials: torch.Tensor | None = None,
) -> torch.Tensor:
    """out (N, H D) = softmax(scale q k) v over positions 0 .. own of each row's sequence. Rows that are padding are not written. `scale`,
    1 / sqrt(D) by default, `window` and `soft_cap` are those of the ops protocol. With `partials` (partials_of), chunks of positions are
    computed beside each other and then joined: the same bits."""
    rows, act = len(q), checks.act_of("q", q)
    paged.check(rows, act)
    kv_heads, head_dim, width = paged.keys.shape[1], paged.keys.shape[3], paged.block_tables.shape[1]
    heads = q.shape[1] // head_dim
    checks.tensor("q", q, q.dtype, rows, heads * head_dim)
    checks.tensor("out", out, q.dtype, rows, heads * head_dim)
    checks.require(head_dim in HEAD_DIMS, f"heads of {head_dim} have no attention kernel; there are {HEAD_DIMS}")
    checks.require(heads % kv_heads == 0, f"{heads} heads cannot share {kv_heads} KV heads")
    checks.aligned("keys", paged.keys)
    checks.aligned("values", paged.values)
    numbers = (("heads", heads), ("kv_heads", kv_heads), ("table_width", width))
    sizes = [checks.int32(name, number) for name, number in numbers]
    turned = checks.float32("scale", head_dim**-0.5 if scale is None else scale)
    rule = (turned, checks.int32("window", window), checks.float32("soft_cap", soft_cap))
    where = (paged.positions, paged.sequence_of_row, paged.block_tables)
    if not rows:
        return out
    variant, grid = attention_variant(act, head_dim), (rows, checks.ceil_div(heads, WARPS))
    arguments: tuple[Argument, ...] = (q, paged.keys, paged.values, *where)
    if partials is None:
        device.launch(ATTENTION, variant, "attention", grid, (*arguments, out, *sizes, *rule))
        return out
    chunks = checks.ceil_div(width * BLOCK_SIZE, CHUNK)
    checks.tensor("partials", partials, torch.float32, rows, heads, chunks, head_dim + 2)
    device.launch(
        ATTENTION, variant, "attention_chunks", (*grid, checks.grid_rows("chunks", chunks)), (*arguments, partials, *sizes, *rule)
    )
    joined = (partials, paged.positions, paged.sequence_of_row, out, sizes[0], checks.int32("chunks", chunks), rule[1])
    device.launch(ATTENTION, variant, "attention_join", grid, joined)
    return out
