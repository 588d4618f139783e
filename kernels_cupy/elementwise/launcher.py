"""Launches elementwise.cu. `out` may be `x`."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import ELEMENTWISE, activation_variant


def add(device: Device, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out = x + y, all (N, E)."""
    checks.tensor("y", y, x.dtype, *x.shape)
    return _launch(device, "add", x, (y,), out)


def add_bias(device: Device, x: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out = x + bias, which is float32 (E)."""
    checks.tensor("bias", bias, torch.float32, x.shape[1])
    return _launch(device, "add_bias", x, (bias,), out)


def scale(device: Device, x: torch.Tensor, factor: float, out: torch.Tensor) -> torch.Tensor:
    """out = x * factor, the factor rounded to float32."""
    return _launch(device, "scale", x, (checks.float32("factor", factor),), out)


def soft_cap(device: Device, x: torch.Tensor, cap: float, out: torch.Tensor) -> torch.Tensor:
    """out = cap * tanh(x / cap)."""
    checks.require(cap > 0, f"cap is {cap}")
    return _launch(device, "soft_cap", x, (checks.float32("cap", cap),), out)


def sigmoid_mul(device: Device, x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """out = x * sigmoid(gate); a gate of one column is for all columns of x."""
    columns = 1 if gate.shape[1] == 1 else x.shape[1]
    checks.tensor("gate", gate, x.dtype, len(x), columns)
    return _launch(device, "sigmoid_mul", x, (gate, checks.int32("gate_width", columns)), out)


def _launch(device: Device, entry: str, x: torch.Tensor, more: tuple[Argument, ...], out: torch.Tensor) -> torch.Tensor:
    (rows, width), act = x.shape, checks.act_of("x", x)
    checks.tensor("x", x, x.dtype, rows, width)
    checks.tensor("out", out, x.dtype, rows, width)
    if rows:
        grid = (checks.ceil_div(width, ELEMENTWISE.threads), checks.grid_rows("rows", rows))
        device.launch(ELEMENTWISE, activation_variant(act), entry, grid, (x, *more, out, checks.int32("width", width, 1)))
    return out
