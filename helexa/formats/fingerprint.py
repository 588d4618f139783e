"""A cheap, stable digest of a model's files: it names them in `system_fingerprint`.

It reads a few megabytes of any file, however large: its size, its head (a GGUF's whole header, for usual vocabularies), its tail,
and pages spread evenly between. Another model, quantisation or conversion differs in it; a file changed on purpose in a few bytes
need not. It is a name, not a seal.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from helexa.errors import ModelFileError

HEAD_BYTES = 2 * 1024 * 1024
TAIL_BYTES = 64 * 1024
PAGE_BYTES = 4096
PAGES = 256


def fingerprint(*paths: Path | str) -> str:
    """16 hexadecimal digits. ModelFileError where a file cannot be read."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(size.to_bytes(8, "little"))
                for start, length in _samples(size):
                    digest.update(os.pread(file.fileno(), length, start))
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _samples(size: int) -> list[tuple[int, int]]:
    """(start, length) of what is read of a file of `size` bytes."""
    if size <= HEAD_BYTES + TAIL_BYTES + PAGES * PAGE_BYTES:
        return [(0, size)]
    between = size - HEAD_BYTES - TAIL_BYTES
    pages = [(HEAD_BYTES + between * index // PAGES // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES) for index in range(PAGES)]
    return [(0, HEAD_BYTES), *pages, (size - TAIL_BYTES, TAIL_BYTES)]
