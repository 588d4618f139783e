"""What rank_exchange.cu computes, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def whole_rows(columns: Sequence[Sequence[NDArray[np.float32]]]) -> NDArray[np.float32]:
    """`columns[rank]` are the parts that a rank pushes; those of all ranks lie side by side, part by part."""
    return np.concatenate([part for parts in zip(*columns, strict=True) for part in parts], axis=1)


def own_ids(ids: NDArray[np.int32], first: int, rows: int) -> NDArray[np.int32]:
    return np.where((ids >= first) & (ids < first + rows), ids - first, -1).astype(np.int32)
