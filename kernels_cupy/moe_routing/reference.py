"""What moe_routing.cu computes, in NumPy and float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def route(scores: NDArray[np.float32], top_k: int, normalise: bool) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """(ids, weights), (N, top_k) each, from the highest score down; the sort is stable, so equal scores come by id."""
    ids = np.argsort(-scores, axis=-1, kind="stable")[:, :top_k]
    wide = scores.astype(np.float64)
    odds = np.exp(wide - wide.max(axis=-1, keepdims=True))
    chosen = np.take_along_axis(odds, ids, axis=-1)
    return ids, chosen / (chosen if normalise else odds).sum(axis=-1, keepdims=True)
