"""Launches gdn_recurrence.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.causal_conv.launcher import Sequences
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import GDN_HEADS, GDN_RECURRENCE, gdn_variant

HELD = 64  # states that a thread holds


def gdn_recurrence(
    device: Device,
    qkv: torch.Tensor,
    gates: torch.Tensor,
    state: torch.Tensor,
    sequences: Sequences,
    key_heads: int,
    tiled: bool,
    out: torch.Tensor,
) -> torch.Tensor:
    """out (N, value heads x value dim), each sequence continued from its state, which is brought up to date.

    qkv: (N, 2 key heads x key dim + value heads x value dim), queries and keys brought to length 1 here; gates: float32 (N, 2 value
    heads), from gdn_gating; state: float32 (slots, value heads, key dim, value dim). `tiled`: value head h reads key head h % key heads.
    """
    rows, act, count = len(qkv), checks.act_of("qkv", qkv), len(sequences.slots)
    _, value_heads, key_dim, value_dim = state.shape
    checks.require((key_dim, value_dim) in GDN_HEADS, f"heads of ({key_dim}, {value_dim}) have no kernel; there are {GDN_HEADS}")
    checks.require(value_heads % key_heads == 0, f"{value_heads} value heads cannot share {key_heads} key heads")
    checks.tensor("qkv", qkv, qkv.dtype, rows, 2 * key_heads * key_dim + value_heads * value_dim)
    checks.tensor("gates", gates, torch.float32, rows, 2 * value_heads)
    checks.tensor("state", state, torch.float32, None, value_heads, key_dim, value_dim)
    checks.tensor("out", out, qkv.dtype, rows, value_heads * value_dim)
    sequences.check(rows)
    numbers = (("key_heads", key_heads), ("value_heads", value_heads), ("tiled", int(tiled)))
    sizes = [checks.int32(name, number) for name, number in numbers]
    if rows and count:
        columns = GDN_RECURRENCE.threads // (key_dim // HELD)
        grid = (value_dim // columns, checks.grid_rows("sequences x heads", count * value_heads))
        where = (sequences.row_start, sequences.positions, sequences.slots)
        arguments: tuple[Argument, ...] = (qkv, gates, state, *where, out, *sizes, checks.float32("scale", key_dim**-0.5))
        device.launch(GDN_RECURRENCE, gdn_variant(act, key_dim, value_dim), "gdn_recurrence", grid, arguments)
    return out
