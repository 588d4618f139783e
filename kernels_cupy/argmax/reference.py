"""What argmax.cu computes, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def error_word(row: NDArray[np.float32]) -> int:
    """0 for a row that can be drawn from; 1 with a NaN, else 2 with a positive infinity, else 4 with nothing above -infinity."""
    if np.isnan(row).any():
        return 1
    if np.isposinf(row).any():
        return 2
    return 4 if np.isneginf(row).all() else 0


def argmax(logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(ids, errors) of (R, V) logits; NumPy's argmax is the first of equals."""
    errors = np.array([error_word(row) for row in logits], np.int32)
    ids = np.array([-1 if error else int(row.argmax()) for row, error in zip(logits, errors, strict=True)], np.int32)
    return ids, errors
