"""What elementwise.cu computes, in torch and float64; sums, products and biases are torch's own operators."""

from __future__ import annotations

import torch


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x.double() / cap)


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x.double() * torch.sigmoid(gate.double())
