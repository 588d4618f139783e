"""What rope_kv.cu computes, in torch: the rotation in float32, one product and one sum at a time as the kernel has them."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, neox: bool) -> torch.Tensor:
    """(N, heads, D) float32 by (N, rotary_dim / 2) cosines and sines."""
    half = cosines.shape[-1]
    first = slice(0, half) if neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if neox else slice(1, 2 * half, 2)
    out, c, s = x.clone(), cosines[:, None], sines[:, None]
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., first] * s + x[..., second] * c
    return out
