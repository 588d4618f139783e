"""A `Place` of workers/ops/cuda on the emulator: the CUDA ops without a GPU, graphs included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import memfd_cupy
import torch
from cuda_on_cpu.emulator import Emulator

from ipc.cuda_array import CudaArrays
from ipc.shared_array import SharedArrays
from kernels_cupy.registry import Defines, Kernel
from workers.ops.cuda.place import CaptureError


class EmulatedPlace(Emulator):
    """While capturing, launches are noted and not run, as on a GPU. `refuse_capture` makes every capture fail at its second launch.
    Unless it `shares`, other ranks cannot map its memory."""

    name = "CUDA kernels on the CPU, for tests"
    torch_device = "cpu"

    def __init__(self, schedule: str = "forward", refuse_capture: bool = False, shares: bool = True) -> None:
        super().__init__(schedule)
        self._refuse_capture = refuse_capture
        self.arrays: SharedArrays | None = CudaArrays(memfd_cupy) if shares else None
        self._noted: list[Callable[[], object]] | None = None
        self._loaded: set[tuple[str, Defines, str]] = set()

    def launch(self, kernel: Kernel, defines: Defines, entry: str, grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
        if self._noted is None:
            self._loaded.add((kernel.name, defines, entry))
            super().launch(kernel, defines, entry, grid, arguments)
            return
        if (kernel.name, defines, entry) not in self._loaded:
            raise AssertionError(f"{entry} was not loaded before the capture")
        if self._refuse_capture and self._noted:
            raise CaptureError("no graphs here")
        launch, held = super().launch, tuple(arguments)  # holds the tensors, as a graph's pool does
        self._noted.append(lambda: launch(kernel, defines, entry, grid, held))

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        noted = self._noted = []
        try:
            work()
        finally:
            self._noted = None

        def replay() -> None:
            for work in noted:
                work()

        return replay

    def synchronise(self) -> None:
        """Nothing runs behind a launch here."""

    def pinned(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    def copy_ahead(self, target: torch.Tensor, source: torch.Tensor) -> object:
        """Overwrites the target at once, as the copy may on a GPU, and only `wait_for` brings what it copies, as it may be that late."""
        self._at_once_or_noted(lambda: target.fill_(0xFF))
        return target, source

    def wait_for(self, copy: Any) -> None:
        target, source = copy
        self._at_once_or_noted(lambda: target.copy_(source))

    def _at_once_or_noted(self, work: Callable[[], object]) -> None:
        if self._noted is None:
            work()
        else:
            self._noted.append(work)

    def tensor_of(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array)

    def address_of(self, array: Any) -> int:
        return int(array.ctypes.data)

    def free_bytes(self) -> int:
        return 1 << 30
