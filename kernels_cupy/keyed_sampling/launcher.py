"""Launches keyed_sampling.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_cupy import checks
from kernels_cupy.device import Device
from kernels_cupy.registry import KEYED_SAMPLING

VOCAB_MOST = 2**19  # see WEIGHT_BITS in the kernel


@dataclass(frozen=True)
class Rules:
    """How each of R rows is drawn, on the device. `log_min_p` is float32, -infinity for off; `seed` is int64 with the bits of the
    unsigned seed; `position` is that of the token to be drawn."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor


def keyed_sample(device: Device, logits: torch.Tensor, rules: Rules) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, errors), int32 (R), of (R, V) float32 logits; errors as in argmax, with id -1."""
    stride = checks.rows_of("logits", logits, torch.float32, None, None)
    rows, vocab = logits.shape
    for name in ("temperature", "top_p", "log_min_p"):
        checks.tensor(name, getattr(rules, name), torch.float32, rows)
    for name in ("top_k", "position"):
        checks.tensor(name, getattr(rules, name), torch.int32, rows)
    checks.tensor("seed", rules.seed, torch.int64, rows)
    size = checks.int32("the vocabulary", vocab, 1, VOCAB_MOST)
    ids, errors = (torch.empty(rows, dtype=torch.int32, device=logits.device) for _ in range(2))
    columns = (rules.temperature, rules.top_k, rules.top_p, rules.log_min_p, rules.seed, rules.position)
    if rows:
        arguments = (logits, checks.int64(stride), size, *columns, ids, errors)
        device.launch(KEYED_SAMPLING, (), "keyed_sample", (rows,), arguments)
    return ids, errors
