"""A GGUF reader over a read-only map of the file. Pure: standard library and numpy.

Layout (GGUF specification, versions 2 and 3, little-endian): magic, version, tensor count, metadata count; the metadata's key,
type and value each; the tensors' name, dimensions, type and offset each; padding to the alignment; the tensor data.

A file is taken for hostile: every count is held against the bytes that are left before anything is made from it, sums are done
in Python's unbounded integers, and whatever does not fit raises ModelFileError naming the file and the field. One thing no reader
of a map can prevent: a file that another process cuts short while it is mapped ends this process with SIGBUS.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats import ggml_types
from helexa.formats.fused import taken_apart
from helexa.formats.tensor_info import REQUIRED, TensorInfo, map_file, metadata_value

MAX_HEADER_BYTES = 256 * 1024 * 1024
MAX_ELEMENTS = 4 * 1024 * 1024  # metadata entries and members of string and nested arrays, in all; each costs a Python object
MAX_NAME_BYTES = 65535
MAX_DEPTH = 4  # of arrays in arrays
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1024 * 1024
MAX_PARTS = 1024

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_REMEDY = "name a .gguf file"
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_LEAST_ENTRY_BYTES = 8 + 4 + 1  # a key's length, a type, a value
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # a name's length, dimensions, one of them, type, offset

T = TypeVar("T")
D = TypeVar("D")


class GGUFFile:
    """An open model file, or several that are parts of one model.

    `metadata` values are int, float, bool or str; an array is a list of str or of arrays, or a read-only numpy array of numbers.
    Of a model in parts it is the first part's. `tensors` has queries, keys and values apart (fused.py). Views returned by `data`
    stay valid after `close`: the map goes with the last.
    """

    path: Path
    size: int  # bytes, of all parts
    files: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path, map: NDArray[np.uint8]) -> None:
        self.path = path
        self.size = len(map)
        self.files = (path,)
        self._maps: list[NDArray[np.uint8]] = [map]
        header = _Header(path, map)
        self.metadata = header.metadata
        self.tensors = header.tensors

    @classmethod
    def open(cls, path: Path | str) -> GGUFFile:
        """ModelFileError where the file cannot be read, is damaged, or is of a kind that is not served.

        Of a model in parts `path` is the first, and the others lie beside it.
        """
        file = cls(Path(path), map_file(Path(path), _REMEDY))
        count = _part(file, 0)
        for number in range(1, count):
            beside = file.path.with_name(_PART.sub(f"-{number + 1:05d}-of-{count:05d}.gguf", file.path.name))
            file._append(cls(beside, map_file(beside, _REMEDY)), number, count)
        total = file.get("split.tensors.count", int, len(file.tensors))
        if total != len(file.tensors):
            raise ModelFileError(f"{file.path}: its parts hold {len(file.tensors)} tensors, not {total}; fetch them again")
        file.tensors = taken_apart(file.metadata, file.tensors)
        return file

    def _append(self, part: GGUFFile, number: int, count: int) -> None:
        if _part(part, number) != count:
            raise ModelFileError(f"{part.path}: split.count differs from the first part's {count}; fetch the parts again")
        twice = next((name for name in part.tensors if name in self.tensors), None)
        if twice is not None:
            raise ModelFileError(f"{part.path}: tensor {twice} is in an earlier part too; the file is damaged")
        self.tensors |= {name: replace(info, file=number) for name, info in part.tensors.items()}
        self.files += part.files
        self.size += part.size
        self._maps += part._maps

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes: a read-only view of the map, nothing is copied."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: tensor {name} is missing; the file is not a whole model of its architecture")
        if not self._maps:
            raise ModelFileError(f"{self.path}: tensor {name} was asked for after the file was closed")
        return self._maps[info.file][info.offset : info.offset + info.nbytes]

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[Any], default: Any = REQUIRED) -> Any:
        """The metadata value of type `kind` (int, float, bool, str, list, np.ndarray); a whole number is also a float.

        A key that is absent gives `default`, or ModelFileError where none is given; another type is always a ModelFileError.
        """
        return metadata_value(self.path, self.metadata, key, kind, default)

    def close(self) -> None:
        self._maps = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def model_files(folder: Path) -> list[Path]:
    """The models in GGUF that a folder holds, by name; of a model in parts its first one."""
    found = [path for path in sorted(folder.glob("*.gguf")) if path.is_file()]
    return [path for path in found if (match := _PART.search(path.name)) is None or int(match[1]) == 1]


def _part(file: GGUFFile, number: int) -> int:
    """How many parts there are, if the file is part `number` (from 0) of them by its name and by its metadata."""
    count = file.get("split.count", int, 1)
    own = file.get("split.no", int, 0)
    if count == 1 and own == 0 == number:
        return 1
    if not 1 <= count <= MAX_PARTS or not 0 <= own < count:
        raise ModelFileError(f"{file.path}: split.no = {own} of split.count = {count}; the file is damaged")
    match = _PART.search(file.path.name)
    if match is None or (int(match[1]), int(match[2])) != (own + 1, count):
        raise ModelFileError(f"{file.path}: part {own + 1} of {count} must be named ...-{own + 1:05d}-of-{count:05d}.gguf")
    if own != number:
        first = _PART.sub(f"-00001-of-{count:05d}.gguf", file.path.name)
        raise ModelFileError(f"{file.path}: part {own + 1} of {count} of a model; name the first, {first}")
    return count


class _Header:
    """Reads the header once, front to back."""

    def __init__(self, path: Path, map: NDArray[np.uint8]) -> None:
        self._path = path
        self._file_bytes = len(map)
        self._bytes = map[:MAX_HEADER_BYTES]
        self._view = self._bytes.data
        self._at = 0
        self._field = "header"
        self._elements = MAX_ELEMENTS
        tensor_count, entry_count = self._counts()
        self.metadata = self._read_metadata(entry_count)
        self.tensors = self._read_tensors(tensor_count)

    def _bad(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._path}: {self._field}: {problem}")

    # primitives

    def _take(self, count: int) -> int:
        """Where the next `count` bytes start; moves past them."""
        start = self._at
        if count > len(self._bytes) - start:
            if self._file_bytes > MAX_HEADER_BYTES:
                raise self._bad(f"the header runs past {MAX_HEADER_BYTES} bytes; no model's is so large, the file is damaged")
            raise self._bad(f"the file ends {count - (len(self._bytes) - start)} bytes too early; fetch it again")
        self._at = start + count
        return start

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._view, self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._view, self._take(8))[0]
        return value

    def _spend(self, elements: int) -> None:
        self._elements -= elements
        if self._elements < 0:
            raise self._bad(f"more than {MAX_ELEMENTS} metadata elements; the file is damaged")

    def _text(self, most: int = MAX_HEADER_BYTES) -> str:
        length = self._u64()
        if length > most:
            raise self._bad(f"a string of {length} bytes, at most {most} are read; the file is damaged")
        start = self._take(length)
        try:
            return str(self._view[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise self._bad("a string is not UTF-8; the file is damaged") from None

    # parts

    def _counts(self) -> tuple[int, int]:
        """(tensors, metadata entries), each held against the bytes that such many would need."""
        start = self._take(4)
        if bytes(self._view[start : start + 4]) != b"GGUF":
            raise self._bad("not a GGUF file (its first bytes are not GGUF); name a .gguf file")
        version = self._u32()
        if version and version & 0xFFFF == 0:
            raise self._bad("a big-endian file; convert it to a little-endian one")
        if version not in (2, 3):
            raise self._bad(f"version {version} of the format; 2 and 3 are read, convert the file")
        tensors, entries = self._u64(), self._u64()
        left = len(self._bytes) - self._at
        if tensors * _LEAST_TENSOR_BYTES + entries * _LEAST_ENTRY_BYTES > left:
            raise self._bad(f"{entries} metadata entries and {tensors} tensors do not fit in {left} bytes; the file is damaged")
        self._spend(tensors + entries)
        return tensors, entries

    def _read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(count):
            self._field = f"metadata entry {index}"
            key = self._text(MAX_NAME_BYTES)
            self._field = key or self._field
            if not key:
                raise self._bad("its key is empty; the file is damaged")
            if key in metadata:
                raise self._bad("the key appears twice; the file is damaged")
            metadata[key] = self._value(self._u32())
        return metadata

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(1)
        code = _SCALARS.get(kind)
        if code is None:
            raise self._bad(f"metadata type {kind} does not exist; the file is damaged")
        value = struct.unpack_from("<" + code, self._view, self._take(struct.calcsize("<" + code)))[0]
        if kind == _BOOL:
            if value > 1:
                raise self._bad(f"a truth value of {value}; the file is damaged")
            return bool(value)
        return value

    def _array(self, depth: int) -> Any:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            return self._texts(count)
        if kind == _ARRAY:
            if depth == MAX_DEPTH:
                raise self._bad(f"arrays nested deeper than {MAX_DEPTH}; the file is damaged")
            self._fits(count, 4 + 8)
            return [self._array(depth + 1) for _ in range(count)]
        code = _SCALARS.get(kind)
        if code is None:
            raise self._bad(f"metadata type {kind} does not exist; the file is damaged")
        dtype = np.dtype("<" + {"B": "u1", "b": "i1"}.get(code, code))
        start = self._take(count * dtype.itemsize)
        numbers = np.frombuffer(self._bytes[start : start + count * dtype.itemsize], dtype=dtype)
        if kind == _BOOL:
            if count and int(numbers.max()) > 1:
                raise self._bad("a truth value above 1; the file is damaged")
            return numbers.view(np.bool_)
        return numbers

    def _fits(self, count: int, least_bytes: int) -> None:
        """Refuses a count of members that the rest of the header cannot hold, before any is made."""
        if count * least_bytes > len(self._bytes) - self._at:
            raise self._bad(f"an array of {count} members does not fit in the file; the file is damaged")
        self._spend(count)

    def _texts(self, count: int) -> list[str]:
        """Vocabularies and merges: hundreds of thousands of strings, so the loop is `_text` written out."""
        self._fits(count, 8)
        view, at, end, length_at = self._view, self._at, len(self._bytes), _U64.unpack_from
        texts = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(view, at)[0]
                if at > end:
                    raise self._bad("the file ends inside an array of strings; fetch it again")
                texts.append(str(view[start:at], "utf-8"))
        except struct.error:
            raise self._bad("the file ends inside an array of strings; fetch it again") from None
        except UnicodeDecodeError:
            raise self._bad(f"string {len(texts)} of the array is not UTF-8; the file is damaged") from None
        self._at = at
        return texts

    def _alignment(self) -> int:
        self._field = "general.alignment"
        value = self.metadata.get("general.alignment", 32)
        if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self._bad(f"{value!r} is not a power of two from 8 to {MAX_ALIGNMENT}; the file is damaged")
        return value

    def _read_tensors(self, count: int) -> dict[str, TensorInfo]:
        alignment = self._alignment()
        entries = [self._tensor_entry(index) for index in range(count)]
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, kind, shape, offset in entries:
            self._field = f"tensor {name}"
            if name in tensors:
                raise self._bad("the name appears twice; the file is damaged")
            if offset % alignment:
                raise self._bad(f"its offset {offset} is not a multiple of {alignment}; the file is damaged")
            nbytes = math.prod(shape) // kind.block * kind.block_bytes
            if data_start + offset + nbytes > self._file_bytes:
                raise self._bad(
                    f"its {nbytes} bytes at {data_start + offset} end past the file's {self._file_bytes}; fetch it again"
                )
            tensors[name] = TensorInfo(name, kind.name, shape, data_start + offset, nbytes)
        return tensors

    def _tensor_entry(self, index: int) -> tuple[str, ggml_types.GGMLType, tuple[int, ...], int]:
        """(name, type, shape, offset in the data). A hostile shape's product has four factors of 64 bits, no more."""
        self._field = f"tensor {index}"
        name = self._text(MAX_NAME_BYTES)
        if not name or "\0" in name:
            raise self._bad("its name is empty or holds a zero; the file is damaged")
        self._field = f"tensor {name}"
        dimensions = self._u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._bad(f"{dimensions} dimensions; 1 to {MAX_DIMENSIONS} are read")
        shape = tuple(self._u64() for _ in range(dimensions))[::-1]
        number = self._u32()
        kind = ggml_types.by_id(number)
        if kind is None:
            raise self._bad(f"type {ggml_types.name_of(number)} is not served; known: {', '.join(ggml_types.BY_NAME)}")
        if 0 in shape:
            raise self._bad(f"a dimension of {shape} is 0; the file is damaged")
        if shape[-1] % kind.block:
            raise self._bad(
                f"{shape[-1]} columns are not a whole number of {kind.name} blocks of {kind.block}; the file is damaged"
            )
        return name, kind, shape, self._u64()
