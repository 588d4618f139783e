"""The definition of a keyed draw, in NumPy; workers/ops/sampling.py is the same for the CPU's ops.

Each token gets Gumbel noise -log(-log(u)), u from a hash of (seed, position, token id), and the highest logit / temperature + noise
wins: a draw from the softmax. Filters come first: min_p, then top_k, then top_p, each on the probabilities at that temperature.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def noise(seed: int, position: int, vocab: int) -> Float32:
    """Gumbel noise of every token id, from float64 logarithms: the exact value of what the kernels round in float32."""
    key = mix(np.array([position], np.uint32))
    key = mix(np.uint32(seed >> 32) ^ key)
    key = mix(np.uint32(seed & 0xFFFFFFFF) ^ key)
    hashed = mix(np.arange(vocab, dtype=np.uint32) * np.uint32(0x9E3779B1) ^ key)
    uniform = (hashed >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) + np.float32(2**-25)
    with np.errstate(divide="ignore"):
        gumbel = -np.log(-np.log(uniform.astype(np.float64)))
    return gumbel.astype(np.float32)


def allowed(row: Float32, temperature: float, top_k: int, top_p: float, log_min_p: float) -> NDArray[np.int64]:
    """The ids that may be drawn, best first, equal ones by lowest id."""
    scaled = row / np.float32(temperature)
    ids = np.flatnonzero(scaled >= scaled.max() + np.float32(log_min_p)) if math.isfinite(log_min_p) else np.arange(row.size)
    ids = ids[np.argsort(-scaled[ids], kind="stable")]
    if top_k > 0:
        ids = ids[:top_k]
    if top_p < 1:
        weights = np.cumsum(np.exp(scaled[ids].astype(np.float64) - float(scaled.max())))
        ids = ids[: int(np.searchsorted(weights, top_p * weights[-1], side="left")) + 1]
    return ids


def draw(row: Float32, temperature: float, top_k: int, top_p: float, log_min_p: float, seed: int, position: int) -> int:
    """The id drawn from a sound row."""
    if temperature == 0 or not np.isfinite(row.max() / np.float32(temperature)):
        return int(row.argmax())
    ids = np.sort(allowed(row, temperature, top_k, top_p, log_min_p))
    scores = (row / np.float32(temperature))[ids] + noise(seed, position, row.size)[ids]
    return int(ids[scores.argmax()])
