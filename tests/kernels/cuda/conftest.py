"""The devices that CUDA kernels are tested on: the CPU emulator in each of its schedules, and a GPU where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cuda_on_cpu.emulator import SCHEDULES, Emulator, guarded
from cuda_places import gpu

Place = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _needs_a_compiler(request: pytest.FixtureRequest) -> None:
    """The emulator's; the compile gate has its own."""
    if shutil.which("g++") is None and "compile" not in request.path.name:
        pytest.skip("g++ is not installed, which the CPU emulator of CUDA kernels needs")


@pytest.fixture(scope="session", params=[*SCHEDULES, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "gpu":
        return gpu()
    return Emulator(request.param, seed=7)


@pytest.fixture(scope="session")
def place(device: Any) -> Place:
    """Puts a tensor where the device reads it; on the emulator, with unreadable memory right behind it."""
    if isinstance(device, Emulator):
        return guarded
    return lambda tensor: tensor.cuda()


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)
