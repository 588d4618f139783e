"""Memory for packed weights, and giving back the pages of the mapped file they came from."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
HUGE_PAGE = 2 << 20
CHUNK_BYTES = 64 << 20


def address_of(array: NDArray[Any]) -> int:
    """Where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


def aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Uninitialised bytes on a cache line's boundary."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -address_of(raw) % ALIGNMENT
    return raw[skip : skip + nbytes]


def mapped_zeros(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed bytes straight from the system, in huge pages where it has them; given back when the array goes. Pages cost nothing
    until they are written."""
    mapped = mmap.mmap(-1, nbytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(mapped, np.uint8)
    skip = -address_of(raw) % HUGE_PAGE
    return raw[skip : skip + nbytes]


class Arena:
    """Hands out zeroed memory that lives as long as the arena, from large mapped chunks."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._chunks: list[NDArray[np.uint8]] = []
        self._free = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` bytes on a cache line's boundary."""
        rounded = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if not self._chunks or self._free + rounded > len(self._chunks[-1]):
            self._add_chunk(max(CHUNK_BYTES, rounded))
        taken = self._chunks[-1][self._free : self._free + nbytes]
        self._free += rounded
        self.used_bytes += rounded
        return taken

    def _add_chunk(self, nbytes: int) -> None:
        self._chunks.append(mapped_zeros(nbytes))
        self._free = 0


def drop_mapped_pages(array: NDArray[Any]) -> None:
    """Lets the system take back the pages of a read-only mapped file that lie wholly in `array`; all else is left alone."""
    _advise(array, "MADV_DONTNEED", whole_pages=True)


def want_mapped_pages(array: NDArray[Any]) -> None:
    """Has the system read a mapped file's pages ahead, all of `array` at once, if it is one's."""
    _advise(array, "MADV_WILLNEED", whole_pages=False)


def _advise(array: NDArray[Any], advice: str, whole_pages: bool) -> None:
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, advice):
        return
    whole = np.frombuffer(owner, np.uint8)
    start = address_of(array) - address_of(whole)
    first, last = start // mmap.PAGESIZE * mmap.PAGESIZE, start + array.nbytes
    if whole_pages:
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = last // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        owner.madvise(getattr(mmap, advice), first, last - first)
