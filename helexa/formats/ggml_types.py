"""GGML tensor types: block geometry, and the reference dequantisation of those that are served.

A quantised row is a run of blocks along its columns; a block holds `block` weights in `block_bytes` bytes. The layouts are those
of the GGUF specification: a half-precision scale (and minimum), then the packed integers; in the 4-bit types the low nibbles are
weights 0 .. 15 of the block and the high nibbles weights 16 .. 31.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError

UInt8 = NDArray[np.uint8]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class GGMLType:
    """`id` is the number in a GGUF file; `block` weights take `block_bytes` bytes."""

    id: int
    name: str
    block: int
    block_bytes: int


_TABLE = (
    GGMLType(0, "F32", 1, 4),
    GGMLType(1, "F16", 1, 2),
    GGMLType(2, "Q4_0", 32, 18),
    GGMLType(3, "Q4_1", 32, 20),
    GGMLType(6, "Q5_0", 32, 22),
    GGMLType(7, "Q5_1", 32, 24),
    GGMLType(8, "Q8_0", 32, 34),
    GGMLType(10, "Q2_K", 256, 84),
    GGMLType(11, "Q3_K", 256, 110),
    GGMLType(12, "Q4_K", 256, 144),
    GGMLType(13, "Q5_K", 256, 176),
    GGMLType(14, "Q6_K", 256, 210),
    GGMLType(30, "BF16", 1, 2),
)
BY_ID = {item.id: item for item in _TABLE}
BY_NAME = {item.name: item for item in _TABLE}

# Types of the format that have no geometry here: named, so that an error can say what the file holds.
_OTHER_NAMES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


def by_id(number: int) -> GGMLType | None:
    return BY_ID.get(number)


def name_of(number: int) -> str:
    """The type's name, or its number where it has none here."""
    known = BY_ID.get(number)
    return known.name if known else _OTHER_NAMES.get(number, f"number {number}")


def row_bytes(type: str, columns: int) -> int:
    """Bytes of one row. ModelFileError where `type` is unknown or `columns` is not a whole number of blocks."""
    known = BY_NAME.get(type)
    if known is None:
        raise ModelFileError(f"tensor type {type} is not known; known: {', '.join(BY_NAME)}")
    if columns < 1 or columns % known.block:
        raise ModelFileError(f"{columns} columns are not a whole number of {type} blocks of {known.block}")
    return columns // known.block * known.block_bytes


def dequantise(type: str, data: UInt8, columns: int) -> Float32:
    """(rows, columns) float32 from the packed rows in `data`, any shape, uint8.

    ModelFileError where the type is not served, or `data` is not a whole number of rows.
    """
    unpack = _UNPACK.get(type)
    if unpack is None:
        raise ModelFileError(
            f"tensors of type {type} are not served; served: {', '.join(SERVED)}; use a model file of one of those"
        )
    size = row_bytes(type, columns)
    if data.size % size:
        raise ModelFileError(f"{data.size} bytes are not a whole number of {type} rows of {size} bytes")
    blocks = np.ascontiguousarray(data).reshape(-1, BY_NAME[type].block_bytes)
    return unpack(blocks).reshape(-1, columns)


def _half(blocks: UInt8, start: int) -> Float32:
    """The half-precision number at byte `start` of each block, as a column of float32."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: UInt8) -> UInt8:
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _f32(blocks: UInt8) -> Float32:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: UInt8) -> Float32:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: UInt8) -> Float32:
    """A bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: UInt8) -> Float32:
    centred = _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    return _half(blocks, 0) * centred.astype(np.float32)


def _q4_1(blocks: UInt8) -> Float32:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: UInt8) -> Float32:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


_UNPACK: dict[str, Callable[[UInt8], Float32]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
SERVED = tuple(_UNPACK)
