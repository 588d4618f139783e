"""Tensors of a model file in another order or part, where an architecture's file lays them out otherwise than its forward wants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.ggml_types import dequantise, row_bytes
from workers.ops.protocol import Float32, RawTensor
from workers.weights.tensors import rows_of

MOST_RUNS = 4  # of neighbouring rows, beyond which a copy is simpler than a part each


def floats(tensor: RawTensor) -> Float32:
    """Its values in its shape, a copy: for small tensors."""
    return dequantise(tensor.type, tensor.data, tensor.shape[-1]).reshape(tensor.shape)


def from_floats(name: str, values: NDArray[np.floating]) -> RawTensor:
    """A tensor of values that were computed."""
    data = np.ascontiguousarray(values, "<f4")
    return RawTensor(name, "F32", data.shape, data.reshape(-1).view(np.uint8))


def rows_in_order(tensor: RawTensor, order: NDArray[np.intp]) -> RawTensor:
    """Those rows of a (rows, columns) tensor, in that order, as a copy of their bytes; their values stay as they are."""
    rows, columns = tensor.shape
    data = tensor.data.reshape(rows, row_bytes(tensor.type, columns))[order]
    return RawTensor(f"{tensor.name}[rows]", tensor.type, (len(order), columns), data.reshape(-1))


def rows_within(tensor: RawTensor, rows: NDArray[np.intp]) -> list[RawTensor]:
    """Those rising rows of a (rows, columns) tensor, as parts that lie side by side: runs of neighbours as views, where they are few."""
    if len(rows) == tensor.shape[0]:
        return [tensor]
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    if len(runs) > MOST_RUNS:
        return [rows_in_order(tensor, rows)]
    return [rows_of(tensor, int(run[0]), int(run[-1]) + 1) for run in runs]


def columns_of(tensor: RawTensor, first: int, end: int) -> RawTensor:
    """Columns first .. end - 1 of a (rows, columns) tensor, a copy. ModelFileError where that cuts a block of a quantised one."""
    rows, columns = tensor.shape
    whole = row_bytes(tensor.type, columns)
    start_byte, end_byte = whole * first // columns, whole * end // columns
    if whole * first % columns or whole * end % columns or row_bytes(tensor.type, end - first) != end_byte - start_byte:
        raise ModelFileError(f"tensor {tensor.name} ({tensor.type}) cannot be cut at columns {first} and {end}")
    data = np.ascontiguousarray(tensor.data.reshape(rows, whole)[:, start_byte:end_byte])
    return RawTensor(f"{tensor.name}[{first}:{end}]", tensor.type, (rows, end - first), data.reshape(-1))
