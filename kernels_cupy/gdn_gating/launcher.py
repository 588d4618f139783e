"""Launches gdn_gating.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Device
from kernels_cupy.registry import GDN_GATING, activation_variant


def gdn_gating(device: Device, ba: torch.Tensor, decay: torch.Tensor, dt_bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out float32 (N, 2 heads): beta = sigmoid(b), then g = decay * softplus(a + dt_bias), of rows that hold b then a. decay, which is
    -exp(A_log), and dt_bias: float32 (heads)."""
    rows, act, heads = len(ba), checks.act_of("ba", ba), len(decay)
    checks.tensor("ba", ba, ba.dtype, rows, 2 * heads)
    checks.tensor("decay", decay, torch.float32, heads)
    checks.tensor("dt_bias", dt_bias, torch.float32, heads)
    checks.tensor("out", out, torch.float32, rows, 2 * heads)
    if rows:
        grid = (checks.ceil_div(heads, GDN_GATING.threads), checks.grid_rows("rows", rows))
        arguments = (ba, decay, dt_bias, out, checks.int32("heads", heads, 1))
        device.launch(GDN_GATING, activation_variant(act), "gdn_gating", grid, arguments)
    return out
