"""The key file: JSON, mode 0600, one entry a key with its SHA-256 and its limits.

A key has 256 random bits, so one round of SHA-256 is all that is needed: nobody finds it from its digest, however fast they hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from helexa.errors import HelexaError

VERSION = 1
PREFIX = "hx-"


class KeyFileError(HelexaError):
    """The key file cannot be read, may be read by others, or is damaged."""


@dataclass(frozen=True)
class Key:
    """`digest` is the key's SHA-256 in hex. Limits of 0 are none; `weight` is its share where keys compete."""

    id: str
    name: str
    digest: str
    created: int  # seconds since the epoch
    concurrency: int = 0  # requests that wait or run
    requests_per_minute: int = 0
    tokens_per_minute: int = 0  # prompt and output
    weight: float = 1.0


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def make(name: str, **limits: float) -> tuple[Key, str]:
    """(entry, the key itself, which is kept nowhere)."""
    token = PREFIX + secrets.token_urlsafe(32)
    return Key(f"key-{secrets.token_hex(4)}", name, digest_of(token), int(time.time()), **limits), token  # type: ignore[arg-type]


def find(keys: Iterable[Key], token: str) -> Key | None:
    """The entry of a key. Looks at every entry, each in constant time."""
    given, found = digest_of(token), None
    for key in keys:
        if hmac.compare_digest(given, key.digest):
            found = key
    return found


def load(path: Path) -> list[Key]:
    """Raises KeyFileError. A file that others may read, or that is not its reader's own, is not believed."""
    try:
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            table = json.loads(file.read().decode())
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be read ({error.strerror}); `helexa keys add NAME` makes one") from None
    except (ValueError, RecursionError) as error:
        raise KeyFileError(f"the key file {path} is damaged: {error}") from None
    if not isinstance(table, dict) or table.get("version") != VERSION or not isinstance(table.get("keys"), list):
        raise KeyFileError(f'the key file {path} is not {{"version": {VERSION}, "keys": [...]}}')
    return [_key(path, entry) for entry in table["keys"]]


def save(path: Path, keys: Iterable[Key]) -> None:
    """Replaces the file in one step, so that a reader sees the old or the new one. Raises KeyFileError."""
    text = json.dumps({"version": VERSION, "keys": [asdict(key) for key in keys]}, indent=1) + "\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be written ({error.strerror})") from None


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise KeyFileError(f"the key file {path} is not a file of yours; move it, or set keys.file to another")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise KeyFileError(f"the key file {path} may be read by others (mode {stat.S_IMODE(status.st_mode):o}): chmod 600 {path}")


_TYPES: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float)}


def _key(path: Path, entry: object) -> Key:
    if not isinstance(entry, dict) or not set(entry) <= {item.name for item in fields(Key)}:
        raise KeyFileError(f"the key file {path} has an entry with fields that are not known here")
    for item in fields(Key):
        value: Any = entry.get(item.name, item.default)
        right = isinstance(value, _TYPES[str(item.type)]) and not isinstance(value, bool)
        if not right or (not isinstance(value, str) and not value >= 0):
            raise KeyFileError(f"the key file {path} has an entry whose `{item.name}` is wrong")
    key = Key(**entry)
    if not key.id or key.weight <= 0 or len(key.digest) != 64 or not key.digest.isascii():
        raise KeyFileError(f"the key file {path} has an entry without an id, a digest or a weight above 0")
    return key
