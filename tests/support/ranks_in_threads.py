"""Several ranks in one process, a thread each: the shards of a model run a step together on one board."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from helexa.formats.checkpoint import Checkpoint
from workers.group import Group, board_bytes
from workers.inputs import StepInputs
from workers.models.registry import load_model
from workers.ops.protocol import Ops
from workers.weights.sharding import Shard

T = TypeVar("T")
ROWS = 64  # the most rows of a step


def groups(ranks: int, columns: int) -> list[Group]:
    """The ends of all ranks, with room for logits of so many columns."""
    board = np.zeros(board_bytes(ranks), np.uint8)
    logits = np.zeros((ROWS, columns), np.float32)
    return [Group(rank, ranks, board, logits, spins=20) for rank in range(ranks)]


def together(members: list[Group], work: Callable[[int], T]) -> list[T]:
    """`work(rank)` of all ranks at once. One that fails keeps no other waiting."""

    def one(rank: int) -> T:
        try:
            return work(rank)
        except BaseException:
            members[rank].leave()
            raise

    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(one, range(len(members))))


class Shards:
    """A model's shards on ops of their own. `make` makes them."""

    def __init__(self, file: Checkpoint, ranks: int, make: Callable[[], Ops], vocab: int) -> None:
        self.ops = [make() for _ in range(ranks)]
        self.models: list[Any] = []
        self._groups = groups(ranks, vocab)
        for group, ops in zip(self._groups, self.ops, strict=True):
            if ranks > 1:
                ops.use_group(group)
            if group.rank == 0:
                ops.use_logits_buffer(group.logits)
            model = load_model(file, ops, Shard(group.rank, ranks))
            ops.allocate_kv(model.layers, 32, model.kv_heads, model.head_dim)
            if hasattr(model, "recurrent"):
                ops.allocate_state(model.recurrent, 8)
            self.models.append(model)

    def run(self, inputs: StepInputs) -> NDArray[np.float32]:
        """(R, V) of rank 0."""
        rows = together(self._groups, lambda rank: self.ops[rank].run(self.models[rank].forward, inputs).copy())
        assert all(len(others) == 0 for others in rows[1:])
        return rows[0]
