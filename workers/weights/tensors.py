"""Tensors of a checkpoint by name, checked against the shapes that the model's metadata promises."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint, TensorInfo
from helexa.formats.ggml_types import row_bytes
from workers.ops.protocol import RawTensor
from workers.weights.sharding import WHOLE, Part, Shard


@runtime_checkable
class ReadsRows(Protocol):
    """A checkpoint that makes its data as they are read, so that it costs less to read some rows."""

    def data_of_rows(self, name: str, first: int, end: int) -> NDArray[np.uint8]: ...


class Tensors:
    """`take` hands out each tensor once or more; what nobody took is listed by `untaken`. `shard`: whose part of the model is read."""

    def __init__(self, file: Checkpoint, shard: Shard = WHOLE) -> None:
        self.file = file
        self.shard = shard
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """Raises ModelFileError where the tensor is missing or of another shape: (length,), or (..., rows, columns)."""
        info = self._checked(name, shape)
        return RawTensor(name, info.type, info.shape, self.file.data(name))

    def take_rows(self, name: str, part: Part, columns: int) -> RawTensor:
        """The rows of `part` of a tensor (all of its rows, `columns`); of the others not a byte is read. As `take`."""
        info = self._checked(name, (part.total, columns))
        if part.is_whole:
            return RawTensor(name, info.type, info.shape, self.file.data(name))
        if isinstance(self.file, ReadsRows):
            data = self.file.data_of_rows(name, part.first, part.end)
            return RawTensor(f"{name}[{part.first}:{part.end}]", info.type, (part.width, columns), data)
        return rows_of(RawTensor(name, info.type, info.shape, self.file.data(name)), part.first, part.end)

    def _checked(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self.file.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.file.path}: tensor {name} is missing; this is not a whole model of its architecture")
        if info.shape != shape:
            raise ModelFileError(f"{self.file.path}: tensor {name} has shape {info.shape}; the metadata asks for {shape}")
        self._taken.add(name)
        return info

    def ignore(self, name: str) -> None:
        """A tensor that the model has no use for, if it is there."""
        self._taken.add(name)

    def untaken(self) -> list[str]:
        return sorted(set(self.file.tensors) - self._taken)


def rows_of(tensor: RawTensor, first: int, end: int) -> RawTensor:
    """Rows first .. end - 1 of a (rows, columns) tensor: a view, nothing is copied. So a fused tensor is taken apart, and a rank
    takes its part."""
    rows, columns = tensor.shape
    if not 0 <= first < end <= rows:
        raise ModelFileError(f"tensor {tensor.name} has {rows} rows; rows {first} to {end} were asked for")
    size = row_bytes(tensor.type, columns)
    return RawTensor(f"{tensor.name}[{first}:{end}]", tensor.type, (end - first, columns), tensor.data[first * size : end * size])


def member_of(tensor: RawTensor, index: int) -> RawTensor:
    """Member `index` of the first dimension of a tensor of three or more (an expert's matrix): a view, nothing is copied."""
    count, *rest = tensor.shape
    if not 0 <= index < count:
        raise ModelFileError(f"tensor {tensor.name} has {count} members; number {index} was asked for")
    size = math.prod(rest[:-1]) * row_bytes(tensor.type, rest[-1])
    return RawTensor(f"{tensor.name}[{index}]", tensor.type, tuple(rest), tensor.data[index * size : (index + 1) * size])
