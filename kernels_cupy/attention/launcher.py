"""Launches attention.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import ATTENTION, HEAD_DIMS, attention_variant
from kernels_cupy.rope_kv.launcher import Paged


def attention(
    device: Device,
    q: torch.Tensor,
    paged: Paged,
    out: torch.Tensor,
    scale: float | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
) -> torch.Tensor:
    """out (N, H D) = softmax(scale q k) v over positions 0 .. own of each row's sequence. Rows that are padding are not written. `scale`,
    1 / sqrt(D) by default, `window` and `soft_cap` are those of the ops protocol."""
    rows, act = len(q), checks.act_of("q", q)
    paged.check(rows, act)
    kv_heads, head_dim = paged.keys.shape[1], paged.keys.shape[3]
    heads = q.shape[1] // head_dim
    checks.tensor("q", q, q.dtype, rows, heads * head_dim)
    checks.tensor("out", out, q.dtype, rows, heads * head_dim)
    checks.require(head_dim in HEAD_DIMS, f"heads of {head_dim} have no attention kernel; there are {HEAD_DIMS}")
    checks.require(heads % kv_heads == 0, f"{heads} heads cannot share {kv_heads} KV heads")
    numbers = (("heads", heads), ("kv_heads", kv_heads), ("table_width", paged.block_tables.shape[1]))
    sizes = [checks.int32(name, number) for name, number in numbers]
    turned = checks.float32("scale", head_dim**-0.5 if scale is None else scale)
    rule = (turned, checks.int32("window", window), checks.float32("soft_cap", soft_cap))
    where = (paged.positions, paged.sequence_of_row, paged.block_tables)
    if rows:
        arguments: tuple[Argument, ...] = (q, paged.keys, paged.values, *where, out, *sizes, *rule)
        device.launch(ATTENTION, attention_variant(act, head_dim), "attention", (rows, heads), arguments)
    return out
