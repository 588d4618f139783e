"""GGML tensor types: block geometry, and the reference dequantisation of those that are served.

A quantised row is a run of blocks along its columns; a block holds `block` weights in `block_bytes` bytes. The layouts are those
of the GGUF specification.

- Blocks of 32: a half-precision scale (and minimum), then the packed integers; low nibbles are weights 0 .. 15 of the block and
  high nibbles weights 16 .. 31. The 5-bit types keep their fifth bits in a word of 32.
- Blocks of 256, the K types: parts of 16 or 32 weights, each with a small integer scale (and minimum), which a half-precision
  scale (and minimum) of the whole block multiplies. A weight is d * scale * q, less dmin * minimum where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


# Bytes of a block once the native ops have packed it (docs/native-ops.md), where they are others than in the file.
_PACKED_BLOCK_BYTES = {"Q2_K": 100, "Q3_K": 114, "Q4_K": 148, "Q5_K": 180}


def packed_bytes(type: str, weights: int) -> int:
    """What `weights` weights of a tensor take in memory, packed by the native ops; `type` is known."""
    known = BY_NAME[type]
    return weights // known.block * _PACKED_BLOCK_BYTES.get(type, known.block_bytes)


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


def _fifth_bits(blocks: UInt8, start: int) -> UInt8:
    """(blocks, 32): 16 where the bit of the word at byte `start` is set."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: UInt8) -> Float32:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (q.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: UInt8) -> Float32:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * q.astype(np.float32) + _half(blocks, 2)


def _parts(packed: UInt8, bits: int, run: int) -> UInt8:
    """(blocks, 256): the K types' integers of 4, 2 or 1 bits. Of each `run` bytes all lowest bits come first, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = packed.reshape(len(packed), -1, 1, run) >> shifts[:, None]
    return (spread & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _combined(d: Float32, scales: NDArray[Any], q: NDArray[Any], dmin: Float32 | None = None, minimums: Any = None) -> Float32:
    """d * scale * q - dmin * minimum: `scales` and `minimums` (blocks, parts), q (blocks, 256)."""
    scale = d * scales.astype(np.float32)
    values = scale[:, :, None] * q.reshape(*scales.shape, -1).astype(np.float32)
    if dmin is not None:
        values = values - (dmin * minimums.astype(np.float32))[:, :, None]
    return values


def _six_bit_pairs(packed: UInt8) -> tuple[UInt8, UInt8]:
    """The 8 scales and 8 minimums of a Q4_K or Q5_K block. Of 12 bytes the first four hold scales 0 .. 3 in their low 6 bits, the
    next four the minimums; the last four hold the low nibbles of scales and minimums 4 .. 7, whose upper bits are the tops of the
    first eight."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | (low >> 6 << 4)], axis=1)
    return scales, np.concatenate([middle & 0x3F, (high >> 4) | (middle >> 6 << 4)], axis=1)


def _q2_k(blocks: UInt8) -> Float32:
    """16 bytes of scales (low nibbles) and minimums (high), 64 of 2-bit integers, d, dmin."""
    scales, q = blocks[:, :16], _parts(blocks[:, 16:80], 2, 32)
    return _combined(_half(blocks, 80), scales & 0x0F, q, _half(blocks, 82), scales >> 4)


def _q3_k(blocks: UInt8) -> Float32:
    """32 bytes of third bits, 64 of lower bits, 12 of 6-bit scales, d. A third bit that is not set takes 4 away.

    Scale k has its low nibble in byte k % 8 of the 12 (the high half of it from 8 on) and its upper two bits in byte 8 + k % 4.
    """
    q = _parts(blocks[:, 32:96], 2, 32).astype(np.int8) - np.int8(4) + (_parts(blocks[:, :32], 1, 32) << 2).astype(np.int8)
    low, high = _parts(blocks[:, 96:104], 4, 8), _parts(blocks[:, 104:108], 2, 4)
    return _combined(_half(blocks, 108), (low | high << 4).astype(np.int8) - np.int8(32), q)


def _q4_k(blocks: UInt8) -> Float32:
    """d, dmin, 12 bytes of scales and minimums, 128 of nibbles."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    return _combined(_half(blocks, 0), scales, _parts(blocks[:, 16:], 4, 32), _half(blocks, 2), minimums)


def _q5_k(blocks: UInt8) -> Float32:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles."""
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    q = _parts(blocks[:, 48:], 4, 32) | _parts(blocks[:, 16:48], 1, 32) << 4
    return _combined(_half(blocks, 0), scales, q, _half(blocks, 2), minimums)


def _q6_k(blocks: UInt8) -> Float32:
    """128 bytes of nibbles, 64 of upper two bits, 16 signed scales, d. The integers are shifted by 32."""
    q = (_parts(blocks[:, :128], 4, 64) | _parts(blocks[:, 128:192], 2, 32) << 4).astype(np.int8) - np.int8(32)
    return _combined(_half(blocks, 208), np.ascontiguousarray(blocks[:, 192:208]).view(np.int8), q)


def _q8_0(blocks: UInt8) -> Float32:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


_UNPACK: dict[str, Callable[[UInt8], Float32]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
SERVED = tuple(_UNPACK)
