"""A step as a file: the plan, what each of its sequences was before, and what came out. Since a step is a function of these, the
file can be run again by itself (tools/replay_plan.py), on any machine and op set that has the model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ipc.messages import Load, Plan, Result, SamplingParams
from workers.runner import Runner


class SeatHistory(msgspec.Struct, forbid_unknown_fields=True):
    """A sequence before the step: the ids in its seat, of which those below the part's start are in the KV cache."""

    seed: int
    prompt_len: int
    params: SamplingParams
    ids: list[int]


class Recording(msgspec.Struct, forbid_unknown_fields=True):
    load: Load
    plan: Plan
    substep: int
    seats: dict[int, SeatHistory]
    result: Result


def histories(plan: Plan, runner: Runner) -> dict[int, SeatHistory]:
    """What the plan's sequences are before the step; those that join with it have no history here."""
    joining = {join.seat for join in plan.joins}
    seats = {index: runner.seat(index) for index in plan.seats if index not in joining}
    return {index: SeatHistory(seat.seed, seat.prompt_len, seat.params, list(seat.ids)) for index, seat in seats.items()}


def write(folder: Path, load: Load, plan: Plan, substep: int, before: dict[int, SeatHistory], result: Result) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"step-{plan.step:08d}-{substep:03d}.msgpack"
    path.write_bytes(msgspec.msgpack.encode(Recording(load, plan, substep, before, result)))
    return path


def read(path: Path) -> Recording:
    """Raises msgspec.MsgspecError for a file that is no recording."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Recording)
