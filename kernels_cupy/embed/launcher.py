"""Launches embed.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Device
from kernels_cupy.linear.launcher import Weight
from kernels_cupy.registry import EMBED, weight_variant


def embed(device: Device, table: Weight, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out (N, E) = rows of `table` at `ids` (N) int32; a row of id -1 is not written. The ids are the caller's to check."""
    rows, act = len(ids), checks.act_of("out", out)
    table.check()
    checks.tensor("ids", ids, torch.int32, rows)
    checks.tensor("out", out, out.dtype, rows, table.inputs)
    row_bytes, width = checks.int64(table.data.shape[1]), checks.int32("width", table.inputs)
    if rows:
        device.launch(EMBED, weight_variant(act, table.format), "embed", (rows,), (table.data, row_bytes, ids, out, width))
    return out
