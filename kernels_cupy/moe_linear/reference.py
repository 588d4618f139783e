"""What moe_linear.cu computes, in NumPy and float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels_cupy.linear.reference import Float32, decode


def moe_linear(x: Float32, weights: Sequence[tuple[str, NDArray[np.uint8]]], ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """(P, O): each pair's row of x times its expert's weight, (format, packed rows). Rows are shared by P / N neighbouring pairs."""
    sharing, columns = ids.size // len(x), x.shape[1]
    dense = [decode(kind, data, columns).astype(np.float64) for kind, data in weights]
    return np.array(
        [dense[expert] @ x[pair // sharing].astype(np.float64) for pair, expert in enumerate(ids.reshape(-1).tolist())]
    )
