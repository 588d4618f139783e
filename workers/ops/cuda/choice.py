"""The ops of a GPU's device worker. Importing this imports torch and CuPy."""

from __future__ import annotations

from workers.ops.cuda.gpu import Gpu
from workers.ops.cuda.ops import CudaOps


def gpu_ops(max_step_tokens: int, max_seats: int) -> CudaOps:
    """On the first GPU that the process sees: its supervisor shows it one. Raises StartError."""
    return CudaOps(Gpu(0), max_step_tokens, max_seats)
