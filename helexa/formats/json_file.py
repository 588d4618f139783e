"""JSON files that come with a model, taken for hostile: bounded in size and depth. Pure but for reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helexa.errors import ModelFileError
from helexa.formats.tensor_info import map_file

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64  # of objects and arrays in each other

Object = dict[str, Any]


def read_text(path: Path, most: int = MAX_CONFIG_BYTES) -> str:
    """ModelFileError where the file cannot be read, is larger than `most` bytes, or is not UTF-8."""
    data = map_file(path, "name the folder of a whole model")
    if len(data) > most:
        raise ModelFileError(f"{path}: {len(data)} bytes, at most {most} are read; the file is damaged")
    try:
        return data.tobytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ModelFileError(f"{path}: not UTF-8; fetch it again") from None


def read_object(path: Path, most: int = MAX_CONFIG_BYTES) -> Object:
    """The object that a file holds. ModelFileError where it holds anything else."""
    return parse_object(read_text(path, most), path)


def read_object_if_any(path: Path, most: int = MAX_CONFIG_BYTES) -> Object:
    """The same; empty where there is no such file."""
    return read_object(path, most) if path.exists() else {}


def parse_object(text: str, path: Path) -> Object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not valid JSON ({' '.join(str(error).split())[:200]}); fetch it again") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object; fetch it again")
    if _depth(value) > MAX_DEPTH:
        raise ModelFileError(f"{path}: nested deeper than {MAX_DEPTH}; the file is damaged")
    return value


def _depth(value: Object) -> int:
    """Levels of objects and arrays, found level by level: a vocabulary's hundreds of thousands of members are one."""
    depth = 0
    level: list[Any] = [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            member
            for item in level
            for member in (item.values() if isinstance(item, dict) else item)
            if isinstance(member, dict | list)
        ]
    return depth
