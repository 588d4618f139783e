"""Weights of the served formats as float32, in NumPy: what weight_formats.cuh decodes. The layouts are those of the GGUF specification."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt8 = NDArray[np.uint8]
Float32 = NDArray[np.float32]


def _half(blocks: UInt8, at: int) -> Float32:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: UInt8) -> Float32:
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_k_scales(packed: UInt8) -> tuple[Float32, Float32]:
    """Eight scales and eight minima of 6 bits from 12 bytes."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(blocks: UInt8) -> Float32:
    scales, minima = _q4_k_scales(blocks[:, 4:16])
    q = np.concatenate([_nibbles(blocks[:, 16 + 32 * j : 48 + 32 * j]) for j in range(4)], axis=1).reshape(-1, 8, 32)
    values: Float32 = (_half(blocks, 0) * scales)[..., None] * q - (_half(blocks, 2) * minima)[..., None]
    return values


def _q6_k(blocks: UInt8) -> Float32:
    parts = []
    for half in range(2):
        low, pairs = _nibbles(blocks[:, 64 * half : 64 * half + 64]), blocks[:, 128 + 32 * half : 160 + 32 * half]
        high = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
        parts.append(low + high.astype(np.float32) * 16 - 32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return scales[..., None] * np.concatenate(parts, axis=1).reshape(-1, 16, 16)


def decode(weight_format: str, data: UInt8, columns: int) -> Float32:
    """(rows, columns) from packed rows."""
    if weight_format == "F32":
        plain: Float32 = np.array(data.reshape(-1).view("<f4"), np.float32).reshape(-1, columns)
        return plain
    if weight_format == "F16":
        return data.reshape(-1).view("<f2").reshape(-1, columns).astype(np.float32)
    if weight_format == "BF16":
        return (data.reshape(-1).view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(-1, columns)
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34, "Q4_K": 144, "Q6_K": 210}[weight_format]
    blocks = np.ascontiguousarray(data).reshape(-1, size)
    if weight_format == "Q4_0":
        values = _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)
    elif weight_format == "Q4_1":
        values = _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)
    elif weight_format == "Q8_0":
        values = _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)
    else:
        values = (_q4_k if weight_format == "Q4_K" else _q6_k)(blocks)
    return values.reshape(-1, columns)
