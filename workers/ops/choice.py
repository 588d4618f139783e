"""Which ops a worker runs: native where they are built for this machine, else the NumPy reference, saying what is missing."""

from __future__ import annotations

from typing import cast

from helexa.errors import StartError
from workers.ops.native.ops import NativeOps, available
from workers.ops.protocol import Ops
from workers.ops.reference import ReferenceOps
from workers.ops.stock import StockOps


def choose_ops(wanted: str, threads: int, max_step_tokens: int, max_seats: int, device: str = "cpu", ranks: int = 1) -> Ops:
    """`device` is `cpu`, or `cuda` for the GPU that this process is shown. `wanted`, of the CPU's ops, is `auto`, `native`,
    `reference`, or `stock`, which is for `helexa verify --self-test`. Raises StartError where `native` is asked for and missing,
    where the built library is of other sources than those beside it, and for several `ranks` on GPUs."""
    if device == "cuda":
        if ranks > 1:
            raise StartError(f"{ranks} ranks on GPUs are not served yet: set devices.tensor_parallel = 1, or devices.use = cpu")
        from workers.ops.cuda.choice import gpu_ops  # torch and CuPy: in a GPU's worker alone

        return cast(Ops, gpu_ops(max_step_tokens, max_seats))  # the ops between ranks are not among a GPU's
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
