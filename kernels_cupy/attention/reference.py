"""What attention.cu computes, in torch and float64, one row at a time."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None = None, window: int = 0, soft_cap: float = 0.0
) -> torch.Tensor:
    """(H, D) of one query (H, D) over the keys and values (L, K, D) of positions 0 .. own."""
    heads, head_dim = q.shape
    group = heads // keys.shape[1]
    kept = slice(-window if window else None, None)
    wide_keys, wide_values = (x[kept].double().repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("hd,lhd->hl", q.double(), wide_keys) * (head_dim**-0.5 if scale is None else scale)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    return torch.einsum("hl,lhd->hd", torch.softmax(scores, dim=-1), wide_values)
