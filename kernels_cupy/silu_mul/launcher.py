"""Launches silu_mul.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Device
from kernels_cupy.registry import SILU_MUL, activation_variant


def silu_mul(device: Device, gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out (N, I) = silu(gate) * up of (N, 2 I) holding gate then up."""
    return _launch(device, "silu_mul", gate_up, out)


def gelu_tanh_mul(device: Device, gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out (N, I) = gelu(gate) * up of (N, 2 I) holding gate then up."""
    return _launch(device, "gelu_tanh_mul", gate_up, out)


def _launch(device: Device, entry: str, gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    (rows, width), act = out.shape, checks.act_of("gate_up", gate_up)
    checks.tensor("gate_up", gate_up, gate_up.dtype, rows, 2 * width)
    checks.tensor("out", out, gate_up.dtype, rows, width)
    if rows:
        grid = (checks.ceil_div(width, SILU_MUL.threads), checks.grid_rows("rows", rows))
        device.launch(SILU_MUL, activation_variant(act), entry, grid, (gate_up, out, checks.int32("width", width, 1)))
    return out
