"""What gdn_recurrence.cu computes for one sequence and one value head, in torch and float64."""

from __future__ import annotations

import torch

EPSILON = 1e-6


def gdn_recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out (T, value dim), the new state) from q, k (T, key dim), v (T, value dim), g, beta (T) and the state (key dim, value dim)."""
    q, k, v, g, beta, held = (x.double() for x in (q, k, v, g, beta, state))
    out = torch.empty_like(v)
    for t in range(len(q)):
        query = q[t] / torch.sqrt(q[t].square().sum() + EPSILON) * scale
        key = k[t] / torch.sqrt(k[t].square().sum() + EPSILON)
        held = held * torch.exp(g[t])
        held = held + torch.outer(key, beta[t] * (v[t] - held.T @ key))
        out[t] = held.T @ query
    return out, held
