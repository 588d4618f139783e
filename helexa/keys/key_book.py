"""The keys that count now: the key file, read again whenever it has changed. Where it cannot be believed, nobody gets in."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from helexa.keys import key_file
from helexa.keys.key_file import Key, KeyFileError

log = logging.getLogger("keys")

Stamp = tuple[int, ...]


class KeyBook:
    """`path` empty: there are no keys, and everybody may ask."""

    def __init__(self, path: str) -> None:
        self.file = path
        self._path = Path(path) if path else None
        self._stamp: Stamp | None = None
        self._keys: list[Key] = []
        self._error: KeyFileError | None = None

    @property
    def enabled(self) -> bool:
        return self._path is not None

    def keys(self) -> list[Key]:
        """Raises KeyFileError."""
        if self._path is None:
            return []
        stamp = _stamp(self._path)
        if stamp != self._stamp or stamp is None:
            self._read(self._path)
            self._stamp = stamp
        if self._error is not None:
            raise self._error
        return self._keys

    def find(self, token: str) -> Key | None:
        """Raises KeyFileError."""
        return key_file.find(self.keys(), token)

    def named(self, id: str) -> Key | None:
        """The key of an id; None where there is none, or the file cannot be believed."""
        try:
            return next((key for key in self.keys() if key.id == id), None)
        except KeyFileError:
            return None

    def _read(self, path: Path) -> None:
        before, self._error = self._error, None
        try:
            self._keys = key_file.load(path)
        except KeyFileError as error:
            self._error, self._keys = error, []
            if before is None or before.message != error.message:
                log.error("%s; until that is mended every request is refused", error.message)


def _stamp(path: Path) -> Stamp | None:
    """Changes with the file's contents, owner and mode; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_mode, status.st_uid)
