"""A reader of Hugging Face checkpoints: config.json and .safetensors files, one or several with an index. Pure.

Layout of a .safetensors file: the header's length (8 bytes, little-endian), the header (JSON: name -> dtype, shape, data_offsets),
then the tensors' bytes side by side, with no gap.

A file is taken for hostile, as in gguf.py: sizes are bounded before anything is made of them, the header is decoded by its schema
alone, and tensors must cover the data exactly, so that none overlaps another or ends past the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats import ggml_types
from helexa.formats.tensor_info import REQUIRED, TensorInfo, map_file, metadata_value

MAX_HEADER_BYTES = 32 * 1024 * 1024  # a tensor takes some 100
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_FILES = 1024
MAX_NAME_BYTES = 65535
MAX_DIMENSIONS = 8
CONFIG, INDEX = "config.json", "model.safetensors.index.json"

_SERVED = ("F32", "F16", "BF16")
_REMEDY = "name a .safetensors file, or the folder that holds it"
_PART = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")

T = TypeVar("T")
D = TypeVar("D")
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[Size], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    data_offsets: tuple[Size, Size]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsCheckpoint:
    """An open folder: its config, and all tensors of its .safetensors files."""

    path: Path
    files: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    format: Literal["safetensors"] = "safetensors"

    def __init__(self, path: Path, files: Iterable[Path], config: Path) -> None:
        """`path` is what errors name."""
        self.path = path
        self.metadata = _read_config(config)
        self.tensors = {}
        self._maps: list[NDArray[np.uint8]] = []
        for file in files:
            map = map_file(file, _REMEDY)
            for name, info in read_header(file, map).items():
                if name in self.tensors:
                    raise ModelFileError(f"{file}: tensor {name} is in another file of the model too; fetch them again")
                self.tensors[name] = replace(info, file=len(self._maps))
            self._maps.append(map)
        self.files = (*files, config)

    @classmethod
    def open(cls, path: Path | str) -> SafetensorsCheckpoint:
        """A folder, a .safetensors file with config.json beside it, or an index of several. ModelFileError where it is damaged,
        not whole, or of a kind that is not served."""
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        index = path if path.suffix == ".json" else folder / INDEX
        if path.suffix == ".json" or (index.is_file() and (path == folder or _PART.search(path.name))):
            wanted = _read_index(index)
            opened = cls(folder, [folder / name for name in sorted(set(wanted.values()))], folder / CONFIG)
            opened._check_index(index, wanted)
            return opened
        if path != folder:
            if _PART.search(path.name):
                raise ModelFileError(f"{path}: one of several files, and no {INDEX} lies beside it; fetch the folder again")
            return cls(path, [path], folder / CONFIG)
        found = model_files(folder)
        if len(found) != 1:
            raise ModelFileError(_why_none(folder, found))
        return cls(folder, found, folder / CONFIG)

    def _check_index(self, index: Path, wanted: dict[str, str]) -> None:
        for name, file in wanted.items():
            info = self.tensors.get(name)
            if info is None or self.files[info.file].name != file:
                raise ModelFileError(f"{index}: tensor {name} is not in {file}; fetch the folder again")

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[Any], default: Any = REQUIRED) -> Any:
        """A value of config.json, as `Checkpoint.get` says; a dot leads into a table."""
        *tables, leaf = key.split(".")
        table: Any = self.metadata
        for name in tables:
            table = table.get(name)
            if not isinstance(table, dict):
                table = {}
        value = table.get(leaf)
        return metadata_value(self.path / CONFIG if self.path.is_dir() else self.path, {key: value}, key, kind, default)

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes: a read-only view of the map, nothing is copied."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: tensor {name} is missing; this is not a whole model of its architecture")
        if not self._maps:
            raise ModelFileError(f"{self.path}: tensor {name} was asked for after the files were closed")
        return self._maps[info.file][info.offset : info.offset + info.nbytes]

    def close(self) -> None:
        self._maps = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def model_files(folder: Path) -> list[Path]:
    """The .safetensors files of a folder, by name."""
    return [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]


def read_header(path: Path, map: NDArray[np.uint8]) -> dict[str, TensorInfo]:
    """The tensors of one mapped file. ModelFileError where the header is damaged, or a tensor is of a type that is not served."""
    if len(map) < 8:
        raise ModelFileError(f"{path}: the file ends before its header; fetch it again")
    length = int.from_bytes(map[:8].tobytes(), "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(f"{path}: not a .safetensors file (a header of {length} bytes); name a .safetensors file")
    if length > len(map) - 8:
        raise ModelFileError(f"{path}: the file ends {length - len(map) + 8} bytes before its header does; fetch it again")
    text = map[8 : 8 + length].tobytes()
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if metadata := raw.pop("__metadata__", None):
            msgspec.json.decode(metadata, type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path}: the header is damaged ({str(error)[:200]}); fetch the file again") from None
    if _count_keys(text) != len(raw) + (metadata is not None):
        raise ModelFileError(f"{path}: the header names a tensor twice; the file is damaged")
    start = 8 + length
    tensors = {name: _tensor(path, name, entry, start) for name, entry in entries.items()}
    at = start
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset != at:
            raise ModelFileError(f"{path}: tensor {info.name} overlaps another, or follows a gap; the file is damaged")
        at += info.nbytes
    if at != len(map):
        raise ModelFileError(f"{path}: its tensors end at {at}, the file at {len(map)}; fetch it again")
    return tensors


def _tensor(path: Path, name: str, entry: _Entry, start: int) -> TensorInfo:
    where = f"{path}: tensor {name[:200]}"
    if not name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise ModelFileError(f"{where}: its name is empty, too long or holds a zero; the file is damaged")
    if entry.dtype not in _SERVED:
        raise ModelFileError(f"{where} is of type {entry.dtype[:20]}, which is not served; served: {', '.join(_SERVED)}")
    if 0 in entry.shape:
        raise ModelFileError(f"{where}: a dimension of {entry.shape} is 0; the file is damaged")
    begin, end = entry.data_offsets
    nbytes = math.prod(entry.shape) * ggml_types.BY_NAME[entry.dtype].block_bytes
    if end - begin != nbytes:
        raise ModelFileError(
            f"{where}: {entry.shape} of {entry.dtype} are {nbytes} bytes, not {end - begin}; the file is damaged"
        )
    return TensorInfo(name, entry.dtype, tuple(entry.shape), start + begin, nbytes)


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]')


def _count_keys(text: bytes) -> int:
    """How many keys the outermost object of well-formed JSON has, also where one is there twice."""
    depth = commas = 0
    empty = True
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == 1:
            empty = False
            commas += token == b","
    return 0 if empty else commas + 1


def _read_config(path: Path) -> dict[str, Any]:
    text = _read_text(path, MAX_CONFIG_BYTES)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not valid JSON ({str(error)[:200]}); fetch it again") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: not a JSON object; fetch it again")
    quantised = config.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else "unknown"
        raise ModelFileError(
            f"{path}: the weights are quantised by `{str(method)[:40]}`, which is not served; use the model as it was trained "
            "(and `quant`), or a GGUF"
        )
    return config


def _read_index(path: Path) -> dict[str, str]:
    """File names by tensor name, each a plain name of a .safetensors file."""
    text = _read_text(path, MAX_HEADER_BYTES)
    try:
        wanted = msgspec.json.decode(text, type=_Index).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path}: the index is damaged ({str(error)[:200]}); fetch it again") from None
    files = set(wanted.values())
    for file in files:
        if Path(file).name != file or not file.endswith(".safetensors") or "\0" in file:
            raise ModelFileError(f"{path}: {file[:200]!r} is not the name of a .safetensors file beside it")
    if not 1 <= len(files) <= MAX_FILES:
        raise ModelFileError(f"{path}: it names {len(files)} files; 1 to {MAX_FILES} are read")
    return wanted


def _read_text(path: Path, most: int) -> bytes:
    if not path.exists():
        raise ModelFileError(f"{path}: missing; it belongs to a model in .safetensors files")
    data = map_file(path, _REMEDY)
    if len(data) > most:
        raise ModelFileError(f"{path}: {len(data)} bytes, at most {most} are read; the file is damaged")
    return data.tobytes()


def _why_none(folder: Path, found: list[Path]) -> str:
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        return f"{folder}: several models ({names}) and no {INDEX}; name one file"
    several = len(list(folder.glob("*.gguf")))
    if several:
        return f"{folder}: {several} .gguf files; name one of them"
    pickled = next((path.name for kind in ("*.bin", "*.pt", "*.pth", "*.pkl") for path in sorted(folder.glob(kind))), None)
    if pickled is not None:
        return f"{folder}: holds only pickled weights ({pickled}), which can run code and are not read; use .safetensors or .gguf"
    return f"{folder}: holds no .safetensors and no .gguf file"
