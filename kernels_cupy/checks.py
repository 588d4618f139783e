"""Checks of a launcher's arguments, and their conversion to the types that a kernel's parameters have."""

from __future__ import annotations

import math

import numpy as np
import torch

ACT_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
INT32_MOST = 2**31 - 1
GRID_MOST = 65535  # blocks along y


class KernelArgumentError(ValueError):
    """An argument that a kernel must not be launched with; says which, and what it should be."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise KernelArgumentError(message)


def act_of(name: str, tensor: torch.Tensor) -> str:
    """The name of an activation's type in a variant."""
    require(tensor.dtype in ACT_NAMES, f"{name} is {tensor.dtype}; activations are float32, float16 or bfloat16")
    return ACT_NAMES[tensor.dtype]


def tensor(name: str, value: torch.Tensor, dtype: torch.dtype, *shape: int | None) -> None:
    """`value` is contiguous, of this type and shape; None stands for any size."""
    require(value.dtype == dtype, f"{name} is {value.dtype}, not {dtype}")
    fits = value.dim() == len(shape) and all(want is None or have == want for have, want in zip(value.shape, shape, strict=True))
    require(fits, f"{name} has shape {tuple(value.shape)}, not {tuple('any' if size is None else size for size in shape)}")
    require(value.is_contiguous(), f"{name} is not contiguous")


def aligned(name: str, value: torch.Tensor) -> None:
    """`value` starts where 16 bytes can be read at once."""
    require(value.data_ptr() % 16 == 0, f"{name} starts at an address not a multiple of 16")


def rows_of(name: str, value: torch.Tensor, dtype: torch.dtype, rows: int | None, columns: int | None) -> int:
    """`value` is a matrix whose rows are contiguous each; returns how many elements they lie apart."""
    require(value.dtype == dtype, f"{name} is {value.dtype}, not {dtype}")
    fits = value.dim() == 2 and rows in (None, value.shape[0]) and columns in (None, value.shape[1])
    require(fits, f"{name} has shape {tuple(value.shape)}, not ({rows or 'any'}, {columns or 'any'})")
    require(value.shape[1] == 0 or value.stride(1) == 1, f"{name}'s rows are not contiguous")
    return int(value.stride(0))


def int32(name: str, value: int, least: int = 0, most: int = INT32_MOST) -> np.int32:
    require(least <= value <= most, f"{name} is {value}, not {least} .. {most}")
    return np.int32(value)


def int64(value: int) -> np.int64:
    return np.int64(value)


def float32(name: str, value: float) -> np.float32:
    require(math.isfinite(value), f"{name} is {value}")
    return np.float32(value)


def grid_rows(name: str, rows: int) -> int:
    """A count that goes along a grid's y."""
    require(rows <= GRID_MOST, f"{name} is {rows}; a launch takes at most {GRID_MOST}")
    return rows


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)
