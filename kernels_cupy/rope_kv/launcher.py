"""Launches rope_kv.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import KV_OF_ACTIVATION, ROPE_KV, rope_kv_variant

BLOCK_SIZE = 16  # S, positions in a KV block
KV_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Paged:
    """A layer's cache, (blocks, K, 16, D) each, and where a step's rows lie in it: `positions` and `sequence_of_row` (N) int32, with
    -1 for a row that is padding, and `block_tables` (B, T) int32. Positions and blocks are the caller's to check: they are on the
    device."""

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    sequence_of_row: torch.Tensor
    block_tables: torch.Tensor

    def check(self, rows: int, act: str) -> None:
        kv = KV_DTYPES[KV_OF_ACTIVATION[act]]
        blocks, kv_heads, _, head_dim = self.keys.shape
        checks.tensor("keys", self.keys, kv, blocks, kv_heads, BLOCK_SIZE, head_dim)
        checks.tensor("values", self.values, kv, blocks, kv_heads, BLOCK_SIZE, head_dim)
        checks.tensor("positions", self.positions, torch.int32, rows)
        checks.tensor("sequence_of_row", self.sequence_of_row, torch.int32, rows)
        checks.tensor("block_tables", self.block_tables, torch.int32, None, None)


def rope_kv_write(
    device: Device, qkv: torch.Tensor, paged: Paged, cosines: torch.Tensor, sines: torch.Tensor, neox: bool, q: torch.Tensor
) -> torch.Tensor:
    """Writes the keys and values of `qkv` (N, (H + 2 K) D) to the cache, keys rotated, and the rotated queries to `q` (N, H D). cosines,
    sines: float32 (positions, rotary_dim / 2), without columns where nothing is rotated. `neox` as in the ops protocol's Rope."""
    rows, act = len(qkv), checks.act_of("qkv", qkv)
    paged.check(rows, act)
    kv_heads, head_dim = paged.keys.shape[1], paged.keys.shape[3]
    heads = q.shape[1] // head_dim
    checks.tensor("q", q, qkv.dtype, rows, heads * head_dim)
    checks.tensor("qkv", qkv, qkv.dtype, rows, (heads + 2 * kv_heads) * head_dim)
    half = cosines.shape[1]
    checks.tensor("cosines", cosines, torch.float32, None, half)
    checks.tensor("sines", sines, torch.float32, len(cosines), half)
    checks.require(2 * half <= head_dim, f"{2 * half} rotary dims do not fit a head of {head_dim}")
    numbers = (heads, kv_heads, head_dim, 2 * half, int(neox), paged.block_tables.shape[1])
    names = ("heads", "kv_heads", "head_dim", "rotary", "neox", "table_width")
    sizes = [checks.int32(name, number) for name, number in zip(names, numbers, strict=True)]
    where = (paged.positions, paged.sequence_of_row, paged.block_tables)
    if rows:
        arguments: tuple[Argument, ...] = (qkv, cosines, sines, *where, q, paged.keys, paged.values, *sizes)
        device.launch(ROPE_KV, rope_kv_variant(act), "rope_kv_write", (rows, heads + 2 * kv_heads), arguments)
    return q
