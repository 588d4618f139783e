"""What gdn_gating.cu computes, in torch and float64."""

from __future__ import annotations

import torch


def gdn_gating(ba: torch.Tensor, decay: torch.Tensor, dt_bias: torch.Tensor) -> torch.Tensor:
    b, a = ba.double().chunk(2, dim=-1)
    softplus = torch.logaddexp(a + dt_bias.double(), torch.zeros((), dtype=torch.float64))
    return torch.cat([torch.sigmoid(b), decay.double() * softplus], dim=-1)
