"""Which ops a worker runs: native where they are built for this machine, else the NumPy reference, saying what is missing."""

from __future__ import annotations

from helexa.errors import StartError
from workers.ops.protocol import Ops
from workers.ops.reference import ReferenceOps


def choose_ops(wanted: str, threads: int, max_step_tokens: int, max_seats: int) -> Ops:
    """`wanted` is `auto`, `native` or `reference`. Raises StartError where `native` is asked for and cannot run."""
    if wanted == "native":
        raise StartError("cpu.ops = native, but this build has no native ops; use `auto` or `reference`")
    return ReferenceOps(threads)
