"""What ipc/cuda_array.py uses of CuPy, on memfds: CUDA's IPC contract where there is no GPU. `python -m memfd_cupy` is its probe.

An importer opens the exporter's descriptor through /proc, so a freed allocation is refused, as CUDA refuses it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

_HANDLE = struct.Struct("<IIQ48x")  # pid, descriptor, inode: 64 bytes
_maps: dict[int, tuple[mmap.mmap, int]] = {}  # address -> map, descriptor (-1 where it was opened)


class CUDARuntimeError(RuntimeError):
    pass


def _map(descriptor: int, kept: int) -> int:
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _maps[address] = (memory, kept)
    return address


def malloc(size: int) -> int:
    if size > 1 << 40:
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
    descriptor = os.memfd_create("device")
    os.ftruncate(descriptor, size)
    return _map(descriptor, descriptor)


def free(address: int) -> None:
    os.close(_maps.pop(address)[1])


def ipc_get(address: int) -> bytes:
    descriptor = _maps[address][1]
    return _HANDLE.pack(os.getpid(), descriptor, os.fstat(descriptor).st_ino)


def ipc_open(handle: bytes, flags: int) -> int:
    pid, descriptor, inode = _HANDLE.unpack(handle)
    try:
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    except OSError:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle") from None
    try:
        if os.fstat(opened).st_ino != inode:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
        return _map(opened, -1)
    finally:
        os.close(opened)


class UnownedMemory:
    def __init__(self, address: int, size: int, owner: object) -> None:
        self.address, self.size, self.owner = address, size, owner


class MemoryPointer:
    def __init__(self, memory: UnownedMemory, offset: int) -> None:
        self.memory = memory


class _Array(np.ndarray):  # type: ignore[type-arg]
    memory: UnownedMemory


def ndarray(shape: tuple[int, ...], dtype: Any, pointer: MemoryPointer) -> Any:
    raw = (ctypes.c_char * max(pointer.memory.size, 1)).from_address(pointer.memory.address)
    array = np.frombuffer(raw, np.uint8, pointer.memory.size).view(dtype).reshape(shape).view(_Array)
    array.memory = pointer.memory
    return array


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    cudaIpcMemLazyEnablePeerAccess=1,
    malloc=malloc,
    free=free,
    ipcGetMemHandle=ipc_get,
    ipcOpenMemHandle=ipc_open,
    ipcCloseMemHandle=lambda address: _maps.pop(address),
    deviceSynchronize=lambda: None,
)
cuda = SimpleNamespace(runtime=runtime, UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer)

if __name__ == "__main__":
    from ipc.cuda_array import CudaArrays, main

    sys.exit(main(sys.argv[1:], CudaArrays(sys.modules["__main__"]), "memfd_cupy"))
