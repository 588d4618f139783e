"""What a launcher needs of a device; a GPU's is workers/ops/cuda/gpu.py, the tests' is the CPU emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from kernels_cupy.registry import Defines, Kernel

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
    Argument: TypeAlias = torch.Tensor | np.generic[Any]
else:
    Tensor = Argument = Any


class Device(Protocol):
    def launch(self, kernel: Kernel, defines: Defines, entry: str, grid: tuple[int, ...], arguments: Sequence[Argument]) -> None:
        """Puts one launch into the current stream. Arguments are tensors of this device, for pointers, and NumPy scalars of the very
        type of the parameter: a Python int would be passed as 8 bytes, and a float as a double, in silence."""
        ...
