"""What the CUDA ops need of where they run; gpu.py is the real one, the tests' is the CPU emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kernels_cupy.device import Device


class CaptureError(Exception):
    """A forward that could not be captured; says why."""


class Place(Device, Protocol):
    name: str  # for people
    torch_device: str

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        """Notes what `work` launches, running nothing, and returns what launches it all again. Raises CaptureError."""
        ...

    def free_bytes(self) -> int:
        """Of the device's memory, what this process could still take."""
        ...
