"""Keyed sampling in NumPy: the definition that every implementation of `Ops.sample` follows.

A draw is a function of (seed, position, token id) alone, so it does not depend on the batch, on drafting, or on a crash:
each token gets Gumbel noise -log(-log(u)) from a hash of the three, and the highest logit / temperature + noise wins (the
Gumbel-max trick: that is a draw from the softmax). Filters come first: min_p, then top_k, then top_p, each on the probabilities
at that temperature, ties kept by lowest id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.ops.protocol import Float32, SampleRows

UInt32 = NDArray[np.uint32]


def mix(x: UInt32) -> UInt32:
    """A 32-bit finaliser with low bias (multiply-xorshift, constants by C. Wellons' search)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def noise(seed: int, position: int, vocab: int) -> Float32:
    """Gumbel noise of every token id, float32. A uniform that rounds to 1 gives infinity, which wins."""
    ids = np.arange(vocab, dtype=np.uint32)
    key = mix(np.array([position], np.uint32))
    key = mix(np.uint32(seed >> 32) ^ key)
    key = mix(np.uint32(seed & 0xFFFFFFFF) ^ key)
    hashed = mix(ids * np.uint32(0x9E3779B1) ^ key)
    uniform = (hashed >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) + np.float32(2**-25)
    with np.errstate(divide="ignore"):
        gumbel: Float32 = -np.log(-np.log(uniform))
    return gumbel


def sample(logits: Float32, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
    """One token a row of (R, V) logits; see Ops.sample."""
    ids = np.full(len(logits), -1, np.int32)
    errors = [""] * len(logits)
    for index, row in enumerate(logits):
        errors[index] = explain(row)
        if not errors[index]:
            ids[index] = _draw(row, rows, index)
    return ids, errors


def explain(row: Float32) -> str:
    """Why a row of logits cannot be drawn from, with counts; empty for a sound one."""
    nan, high = int(np.isnan(row).sum()), int(np.isposinf(row).sum())
    low = int(np.isneginf(row).sum())
    if nan == 0 and high == 0 and low < row.size:
        return ""
    finite = row[np.isfinite(row)].astype(np.float64)
    stats = f"finite {finite.min():.4g} .. {finite.max():.4g}, mean {finite.mean():.4g}" if finite.size else "none finite"
    return f"logits with {nan} NaN, {high} +inf, {low} -inf, {int((row < 0).sum())} negative of {row.size}; {stats}"


def _draw(row: Float32, rows: SampleRows, index: int) -> int:
    temperature = rows.temperature[index]
    if temperature == 0:
        return int(row.argmax())
    scaled = row / temperature
    if not np.isfinite(scaled.max()):  # a tiny temperature overflows: the limit is greedy
        return int(row.argmax())
    candidates = _filtered(scaled, float(rows.min_p[index]), int(rows.top_k[index]), float(rows.top_p[index]))
    scores = scaled + noise(int(rows.seed[index]), int(rows.position[index]), row.size)
    if candidates is None:
        return int(scores.argmax())
    return int(candidates[scores[candidates].argmax()])


def _filtered(scaled: Float32, min_p: float, top_k: int, top_p: float) -> NDArray[np.int64] | None:
    """The ids that may be drawn, rising; None for all."""
    keep = np.ones(scaled.size, bool)
    if min_p > 0:
        keep = scaled >= scaled.max() + np.float32(np.log(min_p))
    ids = np.flatnonzero(keep)
    if top_k and top_k < ids.size:
        ids = np.sort(_best(scaled, ids, top_k))
    if top_p < 1:
        order = _best(scaled, ids, ids.size)
        weights = np.exp(scaled[order].astype(np.float64) - float(scaled.max()))
        cumulative = np.cumsum(weights)
        ids = np.sort(order[: int(np.searchsorted(cumulative, top_p * cumulative[-1], side="left")) + 1])
    return None if ids.size == scaled.size else ids


def _best(scaled: Float32, ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The `count` highest of `ids`, best first, equal ones by lowest id."""
    return ids[np.argsort(-scaled[ids], kind="stable")[:count]]
