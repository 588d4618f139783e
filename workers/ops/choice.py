"""Which ops a worker runs: native where they are built for this machine, else the NumPy reference, saying what is missing."""

from __future__ import annotations

from helexa.errors import StartError
from workers.ops.native.ops import NativeOps, available
from workers.ops.protocol import Ops
from workers.ops.reference import ReferenceOps
from workers.ops.stock import StockOps


def choose_ops(wanted: str, threads: int, max_step_tokens: int, max_seats: int, device: str = "cpu") -> Ops:
    """`device` is `cpu`, or `cuda` for the GPU that this process is shown. `wanted`, of the CPU's ops, is `auto`, `native`,
    `reference`, or `stock`, which is for `helexa verify --self-test`. Raises StartError where `native` is asked for and missing,
    and where the built library is of other sources than those beside it."""
    if device == "cuda":
        from workers.ops.cuda.choice import gpu_ops  # torch and CuPy: in a GPU's worker alone

        return gpu_ops(max_step_tokens, max_seats)
    if wanted == "stock":
        return StockOps(threads)
    if wanted == "reference":
        return ReferenceOps(threads, remedy="cpu.ops = reference was asked for; `auto` is faster")
    missing = available()
    if missing is None:
        return NativeOps(threads, max_step_tokens, max_seats)
    if wanted == "native":
        raise StartError(f"cpu.ops = native: {missing}")
    return ReferenceOps(threads, remedy=missing)
