"""Where the CUDA ops run in tests: a GPU where there is one, else the emulator."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from cuda_on_cpu.place import EmulatedPlace

CUBINS = Path(tempfile.gettempdir()) / f"helexa-cubins-{os.getuid()}"  # kept: tests compile what others have compiled no more


@cache
def gpu() -> Any:
    """The first GPU, with kernels that are compiled once."""
    from workers.ops.cuda.gpu import Gpu

    CUBINS.mkdir(mode=0o700, exist_ok=True)
    return Gpu(0, CUBINS)


def place_of_rank(rank: int) -> Any:
    """A GPU for each rank, while there are any."""
    if not torch.cuda.is_available():
        return EmulatedPlace()
    from workers.ops.cuda.gpu import Gpu

    CUBINS.mkdir(mode=0o700, exist_ok=True)
    return Gpu(rank % torch.cuda.device_count(), CUBINS)


def place_of(schedule: str = "forward", refuse_capture: bool = False) -> Any:
    """`refuse_capture` is the emulator's alone."""
    return gpu() if torch.cuda.is_available() and not refuse_capture else EmulatedPlace(schedule, refuse_capture)
