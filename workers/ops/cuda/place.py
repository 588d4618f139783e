"""What the CUDA ops need of where they run; gpu.py is the real one, the tests' is the CPU emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ipc.shared_array import SharedArrays
from kernels_cupy.device import Device

if TYPE_CHECKING:
    import torch


class CaptureError(Exception):
    """A forward that could not be captured; says why."""


class Place(Device, Protocol):
    name: str  # for people
    torch_device: str
    arrays: SharedArrays | None  # whose memory other ranks can map, and kernels of both write to; None: there is none

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        """Notes what `work` launches, running nothing, and returns what launches it all again. Raises CaptureError."""
        ...

    def synchronise(self) -> None:
        """Waits until all that was launched is done. Raises RuntimeError where it failed."""
        ...

    def pinned(self, values: torch.Tensor) -> torch.Tensor:
        """A copy in host memory that the device can read by itself."""
        ...

    def copy_ahead(self, target: torch.Tensor, source: torch.Tensor) -> object:
        """Starts a copy of pinned memory beside the kernels: behind what was launched so far, and before what waits for the result."""
        ...

    def wait_for(self, copy: object) -> None:
        """What is launched from now on runs behind the copy."""
        ...

    def tensor_of(self, array: Any) -> torch.Tensor:
        """An array of `arrays` as a tensor, which holds it."""
        ...

    def address_of(self, array: Any) -> int:
        """Where kernels find an array of `arrays`, of this process or another's."""
        ...

    def free_bytes(self) -> int:
        """Of the device's memory, what this process could still take."""
        ...
