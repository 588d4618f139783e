"""What embed.cu computes, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels_cupy.linear.reference import Float32, UInt8, decode


def embed(weight_format: str, data: UInt8, columns: int, ids: NDArray[np.int32]) -> Float32:
    return decode(weight_format, data, columns)[ids]
