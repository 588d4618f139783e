"""Launches rms_norm.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import RMS_NORM, activation_variant


def rms_norm(device: Device, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> torch.Tensor:
    """out (N, E) = x / sqrt(mean(x^2) + eps) * weight; weight is float32 (E)."""
    (rows, width), act = x.shape, checks.act_of("x", x)
    checks.tensor("x", x, x.dtype, rows, width)
    checks.tensor("out", out, x.dtype, rows, width)
    checks.tensor("weight", weight, torch.float32, width)
    sizes = checks.int32("width", width, 1), checks.float32("eps", eps)
    if rows:
        device.launch(RMS_NORM, activation_variant(act), "rms_norm", (rows,), (x, weight, out, *sizes))
    return out


def add_rms_norm(
    device: Device,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    total: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """total = x + residual, and out = rms_norm(total), all (N, E); total may be x or residual."""
    (rows, width), act = x.shape, checks.act_of("x", x)
    for name, value in (("x", x), ("residual", residual), ("total", total), ("out", out)):
        checks.tensor(name, value, x.dtype, rows, width)
    checks.tensor("weight", weight, torch.float32, width)
    sizes = checks.int32("width", width, 1), checks.float32("eps", eps)
    if rows:
        device.launch(RMS_NORM, activation_variant(act), "add_rms_norm", (rows,), (x, residual, total, weight, out, *sizes))
    return out


def norm_heads(
    device: Device,
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """out (N, (H + 2 K) D): rms_norm of each query head and each key head of `qkv`, values as they are. Weights: float32 (D)."""
    rows, act, parts = len(qkv), checks.act_of("qkv", qkv), heads + 2 * kv_heads
    width = len(q_weight)
    for name, value in (("qkv", qkv), ("out", out)):
        checks.tensor(name, value, qkv.dtype, rows, parts * width)
    for name, value in (("q_weight", q_weight), ("k_weight", k_weight)):
        checks.tensor(name, value, torch.float32, width)
    numbers = (("heads", heads), ("kv_heads", kv_heads), ("width", width))
    sizes = [checks.int32(name, number, 1) for name, number in numbers]
    if rows:
        arguments: tuple[Argument, ...] = (qkv, q_weight, k_weight, out, *sizes, checks.float32("eps", eps))
        device.launch(RMS_NORM, activation_variant(act), "norm_heads", (rows, parts), arguments)
    return out


def gated_rms_norm(
    device: Device, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> torch.Tensor:
    """out = rms_norm(x) * silu(gate), all (N, heads x width), by heads as wide as `weight`."""
    (rows, columns), act, width = x.shape, checks.act_of("x", x), len(weight)
    for name, value in (("x", x), ("gate", gate), ("out", out)):
        checks.tensor(name, value, x.dtype, rows, columns)
    checks.tensor("weight", weight, torch.float32, width)
    checks.require(columns % width == 0, f"{columns} columns are not heads of {width}")
    sizes = checks.int32("width", width, 1), checks.float32("eps", eps)
    if rows:
        grid = (rows * (columns // width),)
        device.launch(RMS_NORM, activation_variant(act), "gated_rms_norm", grid, (x, gate, weight, out, *sizes))
    return out
