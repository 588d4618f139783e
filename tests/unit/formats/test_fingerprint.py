"""The model file's digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa.errors import ModelFileError
from helexa.formats.fingerprint import HEAD_BYTES, PAGE_BYTES, PAGES, TAIL_BYTES, fingerprint


def test_same_bytes_same_digest(tmp_path: Path) -> None:
    """The digest is of the bytes, not of the name; it is 16 hexadecimal digits."""
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"weights" * 100)
    one = fingerprint(tmp_path / "one")
    assert one == fingerprint(tmp_path / "two")
    assert len(one) == 16 and int(one, 16) >= 0
    (tmp_path / "two").write_bytes(b"weights" * 99 + b"Weights")
    assert one != fingerprint(tmp_path / "two")


def test_large_files_are_sampled(tmp_path: Path) -> None:
    """Of a large file the head, the tail, the size and pages between count; it stays cheap."""
    size = HEAD_BYTES + TAIL_BYTES + 4 * PAGES * PAGE_BYTES
    path = tmp_path / "large"
    digests = set()
    for at in (None, 0, HEAD_BYTES - 1, HEAD_BYTES, size - 1):
        data = bytearray(size)
        if at is not None:
            data[at] = 1
        path.write_bytes(data)
        digests.add(fingerprint(path))
    path.write_bytes(bytes(size + 1))
    digests.add(fingerprint(path))
    assert len(digests) == 6


def test_unreadable(tmp_path: Path) -> None:
    """A missing file is a domain error that names it."""
    with pytest.raises(ModelFileError, match="missing"):
        fingerprint(tmp_path / "missing")
