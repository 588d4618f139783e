"""Quantisers of weights: float32 rows to blocks of a GGML type, each integer rounded to nearest. Pure NumPy.

Scales are those of the GGML definitions. The blocks of 32 are bit for bit what the format's own tools make; Q4_K takes the plain
range of each part, where those tools search for a better one.

How far a weight w of a block can be off, with the block's (part's) scale d, and rounding of the scale to half precision aside:

| type | bound |
|---|---|
| `Q8_0` | d / 2, d = largest magnitude / 127 |
| `Q4_0`, `Q5_0` | d / 2, d = largest magnitude / 8, / 16; at the far end of the range, d |
| `Q4_1`, `Q5_1` | d / 2, d = (largest - smallest) / 15, / 31 |
| `Q4_K` | (d_part + 15 d + dmin) / 2, where d and dmin are the block's largest scale and minimum, / 63 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.ggml_types import BY_NAME, Float32, UInt8

NOT_FINITE = "its values are not finite, or too large to be quantised"
LEAST_SCALE = np.float32(2.0**-100)

Quantiser = Callable[[Float32], UInt8]


def quantise(type: str, rows: Float32) -> UInt8:
    """(n, row bytes) from (n, columns). ModelFileError for a type without a quantiser, columns that are not a whole number of
    blocks, and values that are not finite or too large for a half-precision scale."""
    quantiser = _QUANTISERS.get(type)
    if quantiser is None:
        raise ModelFileError(f"weights cannot be quantised to {type}; possible: {', '.join(_QUANTISERS)}")
    known = BY_NAME[type]
    count, columns = rows.shape
    if columns % known.block:
        raise ModelFileError(f"{columns} columns are not a whole number of {type} blocks of {known.block}")
    with np.errstate(all="ignore"):
        blocks = quantiser(rows.reshape(-1, known.block))
    return blocks.reshape(count, -1)


def _checked_half(values: Float32) -> UInt8:
    """Little-endian half precision, two bytes each, as columns."""
    halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise ModelFileError(NOT_FINITE)
    return halves.view(np.uint8)


def _inverse(scale: Float32) -> Float32:
    """1 / scale, 0 where the scale is so small that it is 0 in half precision."""
    inverse: Float32 = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=np.abs(scale) >= LEAST_SCALE)
    return inverse


def _packed_nibbles(q: UInt8) -> UInt8:
    return q[:, :16] & np.uint8(15) | q[:, 16:] << np.uint8(4)


def _fifth_bits(q: UInt8) -> UInt8:
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def _range(x: Float32) -> tuple[Float32, Float32]:
    """(smallest, largest) along the last axis, which stays; zeros are positive."""
    return x.min(axis=-1, keepdims=True) + np.float32(0), x.max(axis=-1, keepdims=True) + np.float32(0)


def _extreme(x: Float32) -> Float32:
    """The value of largest magnitude of each row, the first of equals."""
    low, high = _range(x)
    values: Float32 = np.where(high > -low, high, low)
    tie = (high == -low)[:, 0] & (high != 0)[:, 0]
    if tie.any():
        rows = x[tie]
        values[tie] = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    return values


def _symmetric(x: Float32, levels: int) -> tuple[UInt8, UInt8]:
    """(halves, integers of 0 .. 2 levels - 1 around `levels`): the value of largest magnitude becomes -levels."""
    scale = _extreme(x) / np.float32(-levels)
    q = x * _inverse(scale)
    q += np.float32(levels + 0.5)
    return _checked_half(scale), np.minimum(q, np.float32(2 * levels - 1), out=q).astype(np.uint8)


def _affine(x: Float32, levels: int) -> tuple[UInt8, UInt8]:
    """(halves of scale and minimum, integers of 0 .. levels)."""
    low, high = _range(x)
    scale = (high - low) / np.float32(levels)
    q = x - low
    q *= _inverse(scale)
    q += np.float32(0.5)
    halves = np.concatenate([_checked_half(scale), _checked_half(low)], axis=1)
    return halves, np.minimum(q, np.float32(levels), out=q).astype(np.uint8)


def _q4_0(x: Float32) -> UInt8:
    halves, q = _symmetric(x, 8)
    return np.concatenate([halves, _packed_nibbles(q)], axis=1)


def _q4_1(x: Float32) -> UInt8:
    halves, q = _affine(x, 15)
    return np.concatenate([halves, _packed_nibbles(q)], axis=1)


def _q5_0(x: Float32) -> UInt8:
    halves, q = _symmetric(x, 16)
    return np.concatenate([halves, _fifth_bits(q), _packed_nibbles(q)], axis=1)


def _q5_1(x: Float32) -> UInt8:
    halves, q = _affine(x, 31)
    return np.concatenate([halves, _fifth_bits(q), _packed_nibbles(q)], axis=1)


def _q8_0(x: Float32) -> UInt8:
    """Halves are rounded away from zero."""
    extreme = _extreme(x)
    scale = (np.abs(extreme) / np.float32(127)).astype(np.float32, copy=False)
    q = x * _inverse(scale)
    whole = np.trunc(q)
    q = whole + np.trunc((q - whole) * np.float32(2))
    return np.concatenate([_checked_half(scale), q.astype(np.int8).view(np.uint8)], axis=1)


def _largest(values: Float32) -> tuple[UInt8, Float32, Float32]:
    """(bytes of d, d as it is read back, integers of 0 .. 63): each row's values as multiples of its largest / 63."""
    halves = _checked_half(values.max(axis=1, keepdims=True) / np.float32(63))
    d: Float32 = halves.view("<f2").astype(np.float32)
    whole: Float32 = np.minimum(np.rint(values * _inverse(d)), np.float32(63))
    return halves, d, whole


def _q4_k(x: Float32) -> UInt8:
    parts = x.reshape(len(x), 8, 32)
    low, high = (values[:, :, 0] for values in _range(parts))
    low = np.minimum(low, np.float32(0))
    d_bytes, d, scales = _largest((high - low) / np.float32(15))
    dmin_bytes, dmin, minimums = _largest(np.float32(0) - low)
    q: Any = parts + (dmin * minimums)[:, :, None]
    q *= _inverse(d * scales)[:, :, None]
    q = np.clip(np.rint(q, out=q), 0, 15, out=q).astype(np.uint8)
    nibbles = (q[:, 0::2] | q[:, 1::2] << np.uint8(4)).reshape(len(x), 128)
    pairs = _six_bit_pairs(scales.astype(np.uint8), minimums.astype(np.uint8))
    return np.concatenate([d_bytes, dmin_bytes, pairs, nibbles], axis=1)


def _six_bit_pairs(scales: UInt8, minimums: UInt8) -> UInt8:
    """12 bytes of 8 scales and 8 minimums of 6 bits, as ggml_types reads them."""
    top = np.uint8(0xC0)
    low = scales[:, :4] | (scales[:, 4:] << np.uint8(2) & top)
    middle = minimums[:, :4] | (minimums[:, 4:] << np.uint8(2) & top)
    high: NDArray[np.uint8] = scales[:, 4:] & np.uint8(15) | minimums[:, 4:] << np.uint8(4)
    return np.concatenate([low, middle, high], axis=1)


_QUANTISERS: dict[str, Quantiser] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
}
# What `quant` may be called, and the type that it means.
QUANTS = {"q4_0": "Q4_0", "q4_1": "Q4_1", "q5_0": "Q5_0", "q5_1": "Q5_1", "q8_0": "Q8_0", "q4k": "Q4_K"}
