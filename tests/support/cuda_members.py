"""What ranks of a group do with the CUDA ops, on GPUs or the emulator, as processes of their own: work for group_members.Members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from cuda_places import place_of_rank
from group_members import whole_rows

from workers.group import Group, GroupLeft, columns_of
from workers.inputs import StepInputs
from workers.ops.cuda import exchange, group_ops
from workers.ops.cuda.ops import CudaOps
from workers.ops.protocol import Matrix, Ops, RawTensor, Value

SEATS, VOCAB = 4, 48
HANDLE_BYTES = 96
PARTS = [[32, 64], [64, 32]]  # of two ranks
WIDTH = sum(map(sum, PARTS))


def joined(group: Group, region: int, spoilt: str = "") -> Any:
    """Ops that have opened the boards of all ranks, whose regions have so many floats. `spoilt`: what goes wrong on rank 1."""
    torch.set_num_threads(1)
    group_ops.REGION_FLOATS = region
    ops = CudaOps(place_of_rank(group.rank), 64, SEATS)
    ops.allocate_kv(1, 8, 1, 16)
    ops.use_group(group)
    handles = ops.share(group.ranks, 2 * WIDTH)
    if group.rank == 1 and spoilt == "opening":
        ops._place.arrays = None
    elif group.rank == 1 and spoilt == "trial":
        try_out = exchange.PeerExchange.try_out
        exchange.PeerExchange.try_out = lambda self: try_out(self) and False  # type: ignore[method-assign]
    own = handles[0].allocation
    words = np.frombuffer(own.ljust(HANDLE_BYTES, b"\0"), np.float32)[None]
    whole = group.gather(words, [[words.size] * group.ranks]).reshape(group.ranks, -1)
    ops.open_shares([[replace(item, allocation=of_rank.tobytes()[: len(own)]) for item in handles] for of_rank in whole])
    return ops


def inputs(rows: int) -> StepInputs:
    """A decode step of ids 0, 11, 22 ..."""
    count = np.arange(rows, dtype=np.int32)
    return StepInputs(11 * count, 0 * count, count, np.arange(rows + 1, dtype=np.int32), 0 * count + 1, count[:, None], count)


def gathering(ops: Any, group: Group) -> Callable[[Ops], Value]:
    """A forward that puts together rows of a table of which each rank has some columns, adds those of one of which each has some ids,
    and ends in that, once from each rank."""
    columns, ids = whole_rows(VOCAB, WIDTH, 1), whole_rows(VOCAB, WIDTH, 2)
    each = VOCAB // group.ranks
    some_columns = _table(ops, columns[:, columns_of(PARTS, group.rank)])
    some_ids = _table(ops, ids[each * group.rank :][:each])

    def forward(step: Ops) -> Value:
        whole = step.all_gather(step.embed(some_columns), PARTS)
        both = step.add(whole, step.embed_across(some_ids, each * group.rank))
        return step.gather_logits(step.gather_logit_rows(both), [WIDTH] * group.ranks)

    return forward


def expected(rows: int) -> bytes:
    ids = 11 * np.arange(rows)
    both = whole_rows(VOCAB, WIDTH, 1)[ids] + whole_rows(VOCAB, WIDTH, 2)[ids]
    return np.concatenate([both, both], axis=1).tobytes()


def decode(group: Group, region: int, steps: int = 4) -> tuple[list[bytes], int, str]:
    """Steps of 3 rows; what they made, how many were replayed, and the ops' remedy."""
    ops = joined(group, region)
    forward = gathering(ops, group)
    made = [np.array(ops.run(forward, inputs(3))).tobytes() for _ in range(steps)]
    return made, ops.graphs.replays, ops.remedy


def fall_back(group: Group, spoilt: str) -> str:
    """What the ops say of it, and that they gather all the same."""
    ops = joined(group, 1 << 12, spoilt)
    each = torch.full((3, 1), float(group.rank))
    assert ops.all_gather(each, [[1] * group.ranks]).tolist() == [list(range(group.ranks))] * 3 and ops.graphs.held_back
    return str(ops.remedy)


def come_late(group: Group, rounds: int, leaves: bool) -> str:
    """Rank 1 does not come to a gather, or leaves the group; what rank 0 gets of it."""
    ops = joined(group, 1 << 12)
    forward = gathering(ops, group)
    if group.rank:
        if leaves:
            group.leave()
            ops.use_group(None)
        return "gone"
    ops._exchange.rounds = rounds or ops._exchange.rounds
    try:
        ops.run(forward, inputs(3))
    except (GroupLeft, RuntimeError) as error:
        return str(error)
    return "all came"


def _table(ops: Any, values: np.ndarray[Any, np.dtype[np.float32]]) -> Matrix:
    held = np.ascontiguousarray(values)
    matrix: Matrix = ops.matrix([RawTensor("x", "F32", held.shape, held.reshape(-1).view(np.uint8))])
    return matrix
