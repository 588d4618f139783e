"""Arrays that processes share: one interface over memfd (CPU) and CUDA IPC (GPU), with CUDA's contract.

The exporter allocates and keeps the array alive until every importer closed it. A handle is opaque bytes, valid while the
exporter lives, and cannot be opened in the process that exported it. An offset, shape and dtype travel beside the handle, as
an allocation's handle names its base.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class IpcError(RuntimeError):
    """A handle that is stale, foreign, or opened where it must not be."""


@dataclass(frozen=True)
class ArrayHandle:
    """Names (part of) an allocation of another process."""

    allocation: bytes
    offset: int  # bytes
    shape: tuple[int, ...]
    dtype: str  # NumPy's spelling


def checked_bytes(nbytes: int, shape: tuple[int, ...], dtype: str, offset: int) -> int:
    """The bytes of an array at `offset` of an allocation of `nbytes`. Raises IpcError where it is not within, misaligned, or of
    objects."""
    kind = np.dtype(dtype)
    needed = math.prod(shape) * kind.itemsize
    if kind.hasobject or offset < 0 or offset % kind.alignment or min(shape, default=0) < 0 or offset + needed > nbytes:
        raise IpcError(f"{dtype}{list(shape)} at {offset} is not within an allocation of {nbytes} bytes")
    return needed


def start_of_process(pid: int) -> int:
    """Field 22 of /proc/pid/stat: with the pid it names a process for good. Raises OSError where there is none."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[19])


class SharedAllocation(Protocol):
    """Memory of this process that others may open."""

    nbytes: int

    def array(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> Any: ...
    def export(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> ArrayHandle: ...
    def close(self) -> None: ...


class OpenedArray(Protocol):
    """Another process's memory, mapped here until `close`."""

    array: Any

    def close(self) -> None: ...


class SharedArrays(Protocol):
    """A back end: `memfd` or `cuda`. `array` is NumPy's, or CuPy's on its device."""

    kind: str

    def allocate(self, nbytes: int) -> SharedAllocation: ...
    def open(self, handle: ArrayHandle) -> OpenedArray: ...
