"""Shared arrays on sealed memfds: nothing in /dev/shm, and the kernel frees them with the last process that maps them.

A seal keeps an importer from shrinking the file under the exporter (which would be a SIGBUS there).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Any

import numpy as np

from ipc.shared_array import ArrayHandle, IpcError, checked_bytes, start_of_process

_ALLOCATION = struct.Struct("<4sIIQQQ")  # magic, pid, descriptor, start of the process, inode, bytes
_MAGIC = b"MFD1"
_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4


def _array(buffer: mmap.mmap, nbytes: int, shape: tuple[int, ...], dtype: str, offset: int) -> np.ndarray[Any, Any]:
    needed = checked_bytes(nbytes, shape, dtype, offset)
    # frombuffer holds the map's buffer, unlike ndarray(): closing the map under a living array raises
    return np.frombuffer(buffer, np.uint8, needed, offset).view(dtype).reshape(shape)


class MemfdAllocation:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._fd = os.memfd_create("helexa", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, max(nbytes, 1))
        fcntl.fcntl(self._fd, _F_ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
        self._map = mmap.mmap(self._fd, max(nbytes, 1))

    def array(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> np.ndarray[Any, Any]:
        return _array(self._map, self.nbytes, shape, dtype, offset)

    def export(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> ArrayHandle:
        self.array(shape, dtype, offset)
        pid = os.getpid()
        inode = os.fstat(self._fd).st_ino
        allocation = _ALLOCATION.pack(_MAGIC, pid, self._fd, start_of_process(pid), inode, self.nbytes)
        return ArrayHandle(allocation, offset, shape, dtype)

    def close(self) -> None:
        """Raises BufferError while arrays over it live, as freeing under a kernel's feet would."""
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)
            self._fd = -1


class MemfdOpened:
    def __init__(self, buffer: mmap.mmap, nbytes: int, handle: ArrayHandle) -> None:
        self._map = buffer
        self.array: np.ndarray[Any, Any] | None = _array(buffer, nbytes, handle.shape, handle.dtype, handle.offset)

    def close(self) -> None:
        self.array = None
        self._map.close()


class MemfdArrays:
    kind = "memfd"

    def allocate(self, nbytes: int) -> MemfdAllocation:
        return MemfdAllocation(nbytes)

    def open(self, handle: ArrayHandle) -> MemfdOpened:
        """Raises IpcError for a stale or foreign handle, and in the exporting process."""
        try:
            magic, pid, fd, start, inode, nbytes = _ALLOCATION.unpack(handle.allocation)
        except struct.error:
            raise IpcError("not a memfd handle") from None
        if magic != _MAGIC:
            raise IpcError("not a memfd handle")
        if pid == os.getpid():
            raise IpcError("a handle cannot be opened in the process that exported it")
        try:
            if start_of_process(pid) != start:
                raise IpcError("the exporter is gone")
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise IpcError("the exporter is gone or freed the array") from None
        try:
            if os.fstat(opened).st_ino != inode:
                raise IpcError("the exporter freed the array")
            buffer = mmap.mmap(opened, max(nbytes, 1))
        finally:
            os.close(opened)
        return MemfdOpened(buffer, nbytes, handle)
