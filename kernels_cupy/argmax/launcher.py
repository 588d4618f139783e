"""Launches argmax.cu."""

from __future__ import annotations

import torch

from kernels_cupy import checks
from kernels_cupy.device import Device
from kernels_cupy.registry import ARGMAX

CHUNK = 8192  # ids a block


def argmax(device: Device, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids int32, values float32, errors int32), each (R), of (R, V) float32 logits. Ties go to the lowest id. An error word is 0, or 1
    for a NaN, 2 for a positive infinity, 4 for a row with nothing above -infinity; that row's id is -1."""
    stride = checks.rows_of("logits", logits, torch.float32, None, None)
    rows, vocab = logits.shape
    ids, errors = (torch.empty(rows, dtype=torch.int32, device=logits.device) for _ in range(2))
    values = torch.empty(rows, dtype=torch.float32, device=logits.device)
    size = checks.int32("the vocabulary", vocab, 1)
    if rows == 0:
        return ids, values, errors
    chunks = checks.ceil_div(vocab, CHUNK)
    partial = torch.empty((rows, chunks), dtype=torch.int64, device=logits.device)
    grid = (chunks, checks.grid_rows("rows", rows))
    stride_chunk = (checks.int64(stride), size, checks.int32("chunk", CHUNK))
    device.launch(ARGMAX, (), "argmax_partial", grid, (logits, *stride_chunk, partial))
    device.launch(ARGMAX, (), "argmax_finish", (rows,), (partial, checks.int32("chunks", chunks), ids, values, errors))
    return ids, values, errors
