"""How rows are drawn, on the device: all columns in one transfer."""

from __future__ import annotations

import numpy as np
import torch

from kernels_cupy.keyed_sampling.launcher import Rules
from workers.ops.protocol import SampleRows


def on_device(rows: SampleRows, torch_device: str) -> Rules:
    min_p = np.asarray(rows.min_p, np.float64)
    count = len(min_p)
    log_min_p = np.full(count, -np.inf)
    np.log(min_p, out=log_min_p, where=min_p > 0)
    columns = (
        np.asarray(rows.seed, np.uint64),  # first: eight bytes each want an address of that multiple
        np.asarray(rows.temperature, np.float32),
        np.asarray(rows.top_k, np.int32),
        np.asarray(rows.top_p, np.float32),
        log_min_p.astype(np.float32),
        np.asarray(rows.position, np.int32),
    )
    assert all(len(column) == count for column in columns), "a rule a row"
    together = np.concatenate([column.view(np.int32) for column in columns])
    placed = torch.from_numpy(together).to(torch_device)
    seed, rest = placed[: 2 * count].view(torch.int64), placed[2 * count :].view(5, count)
    temperature, top_p, log_floor = (rest[index].view(torch.float32) for index in (0, 2, 3))
    return Rules(temperature, rest[1], top_p, log_floor, seed, rest[4])
