"""Shared arrays in GPU memory, by CUDA IPC: the interface of shared_array.py, with CuPy's arrays.

An allocation is cudaMalloc's own, outside the pools of CuPy and torch: a handle names the allocation's base, and freeing it must be
ours to do. Sizes are whole multiples of 2 MiB, as parts of one share a handle. CuPy is given in or imported when the first back end is
made, so importing this module touches no device.

`python -P -m ipc.cuda_array` exports an array and has another process open and change it, and says in one line of JSON how that went.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
import subprocess
import sys
import weakref
from typing import Any

import numpy as np

from ipc.shared_array import ArrayHandle, IpcError, SharedArrays, checked_bytes, start_of_process

_ALLOCATION = struct.Struct("<4sIQQ64s")  # magic, pid, start of the process, bytes, CUDA's handle
_MAGIC = b"CUD1"
_GRANULE = 2 << 20
PROBE_S = 120.0  # two processes each make a device context
_PROBE_VALUE = 41


class _InUse:
    """Kept alive by the arrays over a piece of memory."""


class _Memory:
    """`nbytes` at `address`, lent to arrays until they are gone."""

    def __init__(self, cupy: Any, address: int, nbytes: int) -> None:
        self._cupy, self.address, self.nbytes = cupy, address, nbytes
        self._users: weakref.WeakSet[_InUse] = weakref.WeakSet()

    def array(self, shape: tuple[int, ...], dtype: str, offset: int) -> Any:
        needed = checked_bytes(self.nbytes, shape, dtype, offset)
        user = _InUse()
        self._users.add(user)
        memory = self._cupy.cuda.UnownedMemory(self.address + offset, needed, user)
        return self._cupy.ndarray(shape, np.dtype(dtype), self._cupy.cuda.MemoryPointer(memory, 0))

    def check_unused(self) -> None:
        if len(self._users):
            raise BufferError("arrays over this memory are alive")


class CudaAllocation:
    """Memory of the current device. Close it only once every importer has closed its own end."""

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        self._runtime = cupy.cuda.runtime
        try:
            address = self._runtime.malloc(-(-max(nbytes, 1) // _GRANULE) * _GRANULE)
        except self._runtime.CUDARuntimeError as error:
            raise MemoryError(f"{nbytes} bytes of device memory: {error}") from None
        self._memory: _Memory | None = _Memory(cupy, address, nbytes)

    def _held(self) -> _Memory:
        if self._memory is None:
            raise IpcError("the allocation is closed")
        return self._memory

    def array(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> Any:
        return self._held().array(shape, dtype, offset)

    def export(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> ArrayHandle:
        checked_bytes(self.nbytes, shape, dtype, offset)
        try:
            handle = bytes(self._runtime.ipcGetMemHandle(self._held().address))
        except self._runtime.CUDARuntimeError as error:
            raise IpcError(f"this device does not export memory: {error}") from None
        pid = os.getpid()
        return ArrayHandle(_ALLOCATION.pack(_MAGIC, pid, start_of_process(pid), self.nbytes, handle), offset, shape, dtype)

    def close(self) -> None:
        """Raises BufferError while arrays over it live."""
        if self._memory is not None:
            self._memory.check_unused()
            self._runtime.deviceSynchronize()
            self._runtime.free(self._memory.address)
            self._memory = None


class CudaOpened:
    def __init__(self, cupy: Any, address: int, nbytes: int, handle: ArrayHandle) -> None:
        self._runtime = cupy.cuda.runtime
        self._memory = _Memory(cupy, address, nbytes)
        self._open = True
        try:
            self.array: Any = self._memory.array(handle.shape, handle.dtype, handle.offset)
        except IpcError:
            self._runtime.ipcCloseMemHandle(address)
            raise

    def close(self) -> None:
        """Raises BufferError while other references to the array live."""
        if self._open:
            self.array = None
            self._memory.check_unused()
            self._runtime.deviceSynchronize()
            self._runtime.ipcCloseMemHandle(self._memory.address)
            self._open = False


class CudaArrays:
    """The back end on the current device. `cupy` may be given by a test."""

    kind = "cuda"

    def __init__(self, cupy: Any = None) -> None:
        self._cupy = cupy or importlib.import_module("cupy")

    def allocate(self, nbytes: int) -> CudaAllocation:
        """Raises MemoryError."""
        return CudaAllocation(self._cupy, nbytes)

    def open(self, handle: ArrayHandle) -> CudaOpened:
        """Raises IpcError for a stale or foreign handle, and in the exporting process."""
        try:
            magic, pid, start, nbytes, cuda_handle = _ALLOCATION.unpack(handle.allocation)
        except struct.error:
            raise IpcError("not a CUDA handle") from None
        if magic != _MAGIC:
            raise IpcError("not a CUDA handle")
        if pid == os.getpid():
            raise IpcError("a handle cannot be opened in the process that exported it")
        try:
            alive = start_of_process(pid) == start
        except OSError:
            alive = False
        if not alive:
            raise IpcError("the exporter is gone")
        runtime = self._cupy.cuda.runtime
        try:
            address = runtime.ipcOpenMemHandle(cuda_handle, runtime.cudaIpcMemLazyEnablePeerAccess)
        except runtime.CUDARuntimeError as error:
            raise IpcError(f"the exporter freed the array, or this device cannot map it: {error}") from None
        return CudaOpened(self._cupy, address, nbytes, handle)


def probe(module: str = "ipc.cuda_array") -> str:
    """Why CUDA IPC does not work on this machine; empty where it does. Runs two processes of their own."""
    command = [sys.executable, "-P", "-m", module]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_S:g} s"
    except ValueError:
        return (done.stderr.strip().splitlines() or [f"the probe ended with {done.returncode}"])[-1]
    return str(answer["error"])


def _export_for_probe(arrays: SharedArrays, module: str) -> str:
    """What went wrong when another process opened an array of this one; empty if nothing."""
    allocation = arrays.allocate(4096)
    array = allocation.array((4,), "int32", 256)
    array[...] = _PROBE_VALUE
    handle = allocation.export((4,), "int32", 256)
    command = [sys.executable, "-P", "-m", module, handle.allocation.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["the other process failed"])[-1]
    values = [int(value) for value in array]
    return "" if values == [_PROBE_VALUE + 1] * 4 else f"another process changed the array, but it holds {values} here"


def main(arguments: list[str], arrays: SharedArrays | None = None, module: str = "ipc.cuda_array") -> int:
    """The probe's two processes: without arguments the exporter, with a handle the one that opens it."""
    if arguments:
        opened = (arrays or CudaArrays()).open(ArrayHandle(bytes.fromhex(arguments[0]), 256, (4,), "int32"))
        opened.array += 1
        opened.close()
        return 0
    try:
        error = _export_for_probe(arrays or CudaArrays(), module)
    except Exception as failure:  # whatever it is, ranks must then share by other means
        error = f"{type(failure).__name__}: {failure}"
    print(json.dumps({"error": error}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
