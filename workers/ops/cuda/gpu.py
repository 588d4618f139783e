"""One GPU: kernels compiled with NVRTC, launched through CuPy on torch's current stream, captured into torch's graphs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from helexa.errors import StartError
from ipc.cuda_array import CudaArrays
from ipc.shared_array import SharedArrays
from kernels_cupy import compiler
from kernels_cupy.device import Argument
from kernels_cupy.registry import Defines, Kernel
from workers.ops.cuda.place import CaptureError


class Gpu:
    """A `Place`. `index` counts the devices that this process sees. Raises StartError where there is no such device."""

    def __init__(self, index: int, cubins: Path | None = None) -> None:
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise StartError(f"cuda:{index}: torch finds {torch.cuda.device_count()} GPUs; look with `helexa devices`")
        torch.cuda.set_device(index)
        cupy.cuda.Device(index).use()
        major, minor = torch.cuda.get_device_capability(index)
        self.architecture = 10 * major + minor
        if self.architecture < compiler.ARCHITECTURES[0]:
            raise StartError(f"cuda:{index} has compute capability {major}.{minor}; the kernels need 8.0 or later")
        self.torch_device = f"cuda:{index}"
        self.name = f"CUDA, {torch.cuda.get_device_name(index)}"
        self.arrays: SharedArrays | None = CudaArrays(cupy)
        self._folder = tempfile.TemporaryDirectory(prefix="helexa-cubins-")
        self._cubins = cubins or Path(self._folder.name)
        self._pool = torch.cuda.graph_pool_handle()  # graphs run one after another, so they share memory
        self._copies: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._entries: dict[tuple[str, Defines, str], Any] = {}

    def launch(self, kernel: Kernel, defines: Defines, entry: str, grid: tuple[int, ...], arguments: Sequence[Argument]) -> None:
        """See kernels_cupy/device.py. The stream is asked of torch each time: a capture has one of its own."""
        function = self._entry(kernel, defines, entry)
        passed = tuple(np.uint64(item.data_ptr()) if isinstance(item, torch.Tensor) else item for item in arguments)
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            function(grid, (kernel.threads,), passed)

    def _entry(self, kernel: Kernel, defines: Defines, entry: str) -> Any:
        key = (kernel.name, defines, entry)
        if key not in self._entries:
            try:
                compiler.compile_kernel(kernel, defines, self.architecture, self._cubins)
            except compiler.CompileError as error:
                raise StartError(str(error)) from None
            path = compiler.cached_cubin(kernel, defines, self.architecture, self._cubins)
            module = cupy.RawModule(path=str(path))
            for name in kernel.entries:
                self._entries[kernel.name, defines, name] = module.get_function(name)
        return self._entries[key]

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        """See Place.capture. Every variant that `work` launches must have been launched before."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                work()
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a capture that cannot even be ended leaves its own current
            raise CaptureError(str(error).splitlines()[0]) from None
        replay: Callable[[], None] = graph.replay
        return replay

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def pinned(self, values: torch.Tensor) -> torch.Tensor:
        return values.contiguous().pin_memory()

    def copy_ahead(self, target: torch.Tensor, source: torch.Tensor) -> object:
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
            return self._copies.record_event()

    def wait_for(self, copy: object) -> None:
        assert isinstance(copy, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(copy)

    def tensor_of(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=self.torch_device)

    def address_of(self, array: Any) -> int:
        return int(array.data.ptr)

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info()
        held: int = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(free) + held
