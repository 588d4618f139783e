"""Weights that were quantised at load, kept on disk for the next start: one file a model and quantisation.

Layout: 8 bytes of magic, the tensors' blocks (as in a GGUF, so for any ops and instruction set) at multiples of 64, a JSON footer
{key, tensors: name -> [type, offset, bytes, CRC-32]}, then its length (8 bytes, little-endian), its BLAKE2b digest (32) and the
magic again. A file is written beside its name and renamed, so it is whole or absent; one that does not match what is wanted is as
good as absent, and a tensor whose bytes do not have their CRC is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.tensor_info import TensorInfo, map_file

log = logging.getLogger("worker")

VERSION = 1  # of the layout and of the quantisers: another one finds nothing of this one's
MAGIC = b"HXQUANT1"
SUFFIX = ".blocks"
ALIGNMENT = 64
MAX_FOOTER_BYTES = 32 * 1024 * 1024
_TRAILER_BYTES = 8 + 32 + len(MAGIC)

UInt8 = NDArray[np.uint8]


class _Footer(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    tensors: dict[str, tuple[str, int, int, int]]


def cache_key(files: Sequence[Path], quant: str) -> str:
    """Names the files as they are now, by device, inode, size and time of change, and what is made of them."""
    parts: list[object] = [VERSION, quant]
    for file in files:
        status = file.stat()
        parts.append([status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns])
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


class CacheReader:
    """An open cache file that has exactly the tensors that are wanted."""

    def __init__(self, path: Path, map: UInt8, tensors: dict[str, tuple[str, int, int, int]]) -> None:
        self.path = path
        self.damaged = False
        self._map = map
        self._tensors = tensors

    @classmethod
    def open(cls, path: Path, key: str, wanted: Mapping[str, TensorInfo]) -> CacheReader | None:
        """None where there is no such file, or it is not whole, of another key, or of other tensors."""
        try:
            map = map_file(path, "")
            footer = _read_footer(map)
        except (ModelFileError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
            return None
        if footer.key != key or footer.tensors.keys() != wanted.keys():
            return None
        for name, (type, offset, nbytes, _) in footer.tensors.items():
            info = wanted[name]
            if (type, nbytes) != (info.type, info.nbytes) or not 0 <= offset <= len(map) - nbytes:
                return None
        with contextlib.suppress(OSError):
            os.utime(path)  # lately used
        return cls(path, map, footer.tensors)

    def data(self, name: str) -> UInt8 | None:
        """The tensor's blocks, a view of the mapped file; None where they are damaged."""
        _, offset, nbytes, crc = self._tensors[name]
        data = self._map[offset : offset + nbytes]
        if zlib.crc32(data.data) != crc:
            self.damaged = True
            return None
        return data


def _read_footer(map: UInt8) -> _Footer:
    """Raises ValueError where it is not whole."""
    if len(map) < len(MAGIC) + _TRAILER_BYTES or map[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError("no cache file")
    trailer = map[-_TRAILER_BYTES:].tobytes()
    length = int.from_bytes(trailer[:8], "little")
    if trailer[40:] != MAGIC or length > min(MAX_FOOTER_BYTES, len(map) - _TRAILER_BYTES):
        raise ValueError("a cache file that was cut")
    footer = map[len(map) - _TRAILER_BYTES - length : len(map) - _TRAILER_BYTES].tobytes()
    if hashlib.blake2b(footer, digest_size=32).digest() != trailer[8:40]:
        raise ValueError("a damaged footer")
    return msgspec.json.decode(footer, type=_Footer)


class CacheWriter:
    """A cache file that is being written. Trouble with the disk ends it with a log line, and costs no more than the cache."""

    def __init__(self, path: Path, key: str, temporary: Path, file: BinaryIO) -> None:
        self.path = path
        self._key = key
        self._file: BinaryIO | None = file
        self._temporary = temporary
        self._tensors: dict[str, tuple[str, int, int, int]] = {}

    @classmethod
    def create(cls, path: Path, key: str, nbytes: int) -> CacheWriter | None:
        """None, with a log line, where it cannot be written. `nbytes`: what will be written, about."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = shutil.disk_usage(path.parent).free
            if free < 2 * nbytes:
                log.info("quantised weights are not kept: %s has %.0f MiB free", path.parent, free / 2**20)
                return None
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.fdopen(os.open(temporary, flags, 0o600), "wb")
            file.write(MAGIC)
            return cls(path, key, temporary, file)
        except OSError as error:
            log.warning("quantised weights are not kept: %s (%s)", path.parent, error.strerror)
            return None

    def add(self, name: str, type: str, data: UInt8) -> None:
        if self._file is None or name in self._tensors:
            return
        try:
            self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
            self._tensors[name] = (type, self._file.tell(), data.nbytes, zlib.crc32(data.data))
            self._file.write(data.data)
        except OSError as error:
            self._give_up(error)

    def finish(self) -> None:
        """The file becomes the cache's."""
        if self._file is None:
            return
        try:
            footer = msgspec.json.encode(_Footer(self._key, self._tensors))
            digest = hashlib.blake2b(footer, digest_size=32).digest()
            self._file.write(footer + len(footer).to_bytes(8, "little") + digest + MAGIC)
            self._file.close()
            os.replace(self._temporary, self.path)
            self._file = None
        except OSError as error:
            self._give_up(error)

    def abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
            self._temporary.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        log.warning("quantised weights are not kept: %s (%s)", self.path.parent, error.strerror)
        self.abandon()


def trim(folder: Path, most_bytes: int, keep: Path) -> None:
    """Removes what was used longest ago until the rest has at most `most_bytes`; `keep` goes last. What another process left half
    written goes too."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.name.startswith(".") and SUFFIX in path.name and not _is_running(path.name.rpartition(".")[2]):
                path.unlink()
            elif path.suffix == SUFFIX:
                status = path.stat()
                found.append((path == keep, status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, _, size, _ in found)
    for _, _, size, path in sorted(found):
        if total <= most_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _is_running(pid: str) -> bool:
    return pid.isdecimal() and Path("/proc", pid).exists()
