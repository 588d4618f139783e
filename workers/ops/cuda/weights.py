"""Weights as they lie in the file, copied to the device; formats without a kernel as float32."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.ggml_types import dequantise
from helexa.formats.tensor_info import TensorInfo
from kernels_cupy.linear.launcher import BLOCKS, Weight
from workers.ops.cuda.streaming import StreamedWeight, Streams
from workers.ops.protocol import RawTensor


@dataclass(frozen=True)
class DeviceMatrix:
    """A linear's weight: parts whose outputs lie side by side."""

    parts: tuple[Weight, ...]

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Those that stay on the device."""
        return sum(part.data.numel() for part in self.parts if not isinstance(part, StreamedWeight))


def matrix(parts: Sequence[RawTensor], torch_device: str, streams: Streams) -> DeviceMatrix:
    """On the device, or to be streamed to it. Raises ModelFileError for a shape that the kernels do not take."""
    columns = parts[0].shape[-1]
    for part in parts:
        if len(part.shape) != 2 or part.shape[1] != columns:
            raise ModelFileError(f"tensor {part.name} has shape {part.shape}, but its linear takes {columns} columns")
    return DeviceMatrix(tuple(_weight(part, columns, torch_device, streams) for part in parts))


def _weight(part: RawTensor, columns: int, torch_device: str, streams: Streams) -> Weight:
    kind, data = part.type, part.data
    if kind not in BLOCKS:
        kind, data = "F32", dequantise(part.type, part.data, columns).view(np.uint8)
    block, size = BLOCKS[kind]
    if columns % block:
        raise ModelFileError(f"tensor {part.name} has {columns} columns; on GPUs they come in blocks of {block}")
    rows = np.array(data).reshape(part.shape[0], columns // block * size)
    if streams.stays(rows.size):
        return Weight(_on_device(rows, torch_device), kind, columns)
    return streams.add(Weight(torch.from_numpy(rows), kind, columns))


def held_bytes(tensors: Iterable[TensorInfo]) -> int:
    """What the matrices among them take on a device."""
    return sum(_held(tensor.type, math.prod(tensor.shape), tensor.nbytes) for tensor in tensors if len(tensor.shape) > 1)


def _held(kind: str, count: int, nbytes: int) -> int:
    return nbytes if kind in BLOCKS else 4 * count


def vector(tensor: RawTensor, torch_device: str) -> torch.Tensor:
    """float32, as many as the tensor holds."""
    values = dequantise(tensor.type, tensor.data, tensor.shape[-1]).reshape(-1)
    return _on_device(np.array(values, np.float32), torch_device)


def _on_device(values: NDArray[Any], torch_device: str) -> torch.Tensor:
    """Raises MemoryError."""
    try:
        return torch.from_numpy(values).to(torch_device)
    except torch.OutOfMemoryError as error:
        raise memory_error(error) from None


def memory_error(error: torch.OutOfMemoryError) -> MemoryError:
    """torch's as Python's: what a worker tells from a broken device."""
    return MemoryError(str(error).splitlines()[0])
