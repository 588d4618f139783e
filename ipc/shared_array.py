"""Arrays that processes share: one interface over memfd (CPU) and CUDA IPC (GPU), with CUDA's contract.

The exporter allocates and keeps the array alive until every importer closed it. A handle is opaque bytes, valid while the
exporter lives, and cannot be opened in the process that exported it. An offset, shape and dtype travel beside the handle, as
an allocation's handle names its base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class IpcError(RuntimeError):
    """A handle that is stale, foreign, or opened where it must not be."""


@dataclass(frozen=True)
class ArrayHandle:
    """Names (part of) an allocation of another process."""

    allocation: bytes
    offset: int  # bytes
    shape: tuple[int, ...]
    dtype: str  # NumPy's spelling


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
    """A back end: `memfd` or `cuda`."""

    kind: str

    def allocate(self, nbytes: int) -> SharedAllocation: ...
    def open(self, handle: ArrayHandle) -> OpenedArray: ...
