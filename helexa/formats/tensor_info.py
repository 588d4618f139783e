"""What every reader of model files shares: where a tensor lies, the map of a file, and a checked look into its metadata."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError

REQUIRED: Any = object()


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `type` is a GGML type name.

    `shape` is (length,), (rows, columns), or (..., rows, columns): the last dimension is the contiguous one. `offset` is in bytes
    from the start of the file; of a model in several files, `file` says which of them.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: int = 0


def map_file(path: Path, remedy: str) -> NDArray[np.uint8]:
    """The file's bytes, read-only. Anything but a regular file is refused without waiting on it; `remedy` says what to name."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: not a regular file; {remedy}")
            if status.st_size == 0:
                raise ModelFileError(f"{path}: the file is empty; fetch it again")
            return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), dtype=np.uint8)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def metadata_value(path: Path, metadata: Mapping[str, Any], key: str, kind: type[Any], default: Any = REQUIRED) -> Any:
    """The value at `key`, of type `kind`; a whole number is also a float.

    A key that is absent or None gives `default`, or ModelFileError where none is given; another type is always a ModelFileError.
    """
    value = metadata.get(key)
    if value is None:
        if default is REQUIRED:
            raise ModelFileError(f"{path}: {key} is missing")
        return default
    if kind is float and type(value) is int:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ModelFileError(f"{path}: {key} is of type {type(value).__name__}, expected {kind.__name__}")
    return value
