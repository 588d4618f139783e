"""The seats of a worker: what it remembers of each running sequence between steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ipc.messages import Plan, SamplingParams
from workers.grammar import GrammarState


class PlanError(Exception):
    """A plan that contradicts what the worker holds: the scheduler and it disagree, so the worker cannot go on."""


@dataclass
class Seat:
    """`ids` is what the sequence has been computed from so far, and the last token drawn for it."""

    seed: int
    prompt_len: int
    params: SamplingParams
    ids: list[int] = field(default_factory=list)
    num_blocks: int = 0
    grammar: GrammarState | None = None
    pooled: NDArray[np.float64] | None = (
        None  # (E) sum of the prompt's rows so far, where the model makes embeddings of their mean
    )
    unscored: NDArray[np.float32] | None = None  # (V) logits after the last prompt token so far, where the prompt is scored


class Seats:
    """Block tables are append-only: a full table is never moved, so KV never is."""

    def __init__(self, seats: int, blocks: int, blocks_per_sequence: int) -> None:
        self._seats: list[Seat | None] = [None] * seats
        self._blocks = blocks
        self.block_tables: NDArray[np.int32] = np.zeros((seats, blocks_per_sequence), np.int32)

    @property
    def count(self) -> int:
        return len(self._seats)

    def __getitem__(self, index: int) -> Seat:
        seat = self._seats[index] if 0 <= index < len(self._seats) else None
        if seat is None:
            raise PlanError(f"seat {index} is empty")
        return seat

    def apply(self, plan: Plan) -> None:
        """Leaves, joins and new blocks of a plan. Raises PlanError."""
        for index in plan.leaves:
            if 0 <= index < len(self._seats):
                self._seats[index] = None
        for join in plan.joins:
            if not 0 <= join.seat < len(self._seats):
                raise PlanError(f"seat {join.seat} of {len(self._seats)}")
            if len(join.history) % 4:
                raise PlanError(f"seat {join.seat}'s history has {len(join.history)} bytes")
            history = np.frombuffer(join.history, "<i4").tolist()
            self._seats[join.seat] = Seat(join.seed, join.prompt_len, join.params, history)
        for index, block in zip(plan.block_seats, plan.blocks, strict=True):
            seat = self[index]
            if not 0 <= block < self._blocks or seat.num_blocks >= self.block_tables.shape[1]:
                raise PlanError(f"block {block} cannot be seat {index}'s number {seat.num_blocks}")
            self.block_tables[index, seat.num_blocks] = block
            seat.num_blocks += 1

    def feed(self, plan: Plan) -> list[list[int]]:
        """The ids each part computes, noted in the seats' histories. Raises PlanError."""
        fed: list[list[int]] = []
        at = 0
        for index, start, count, carried in zip(plan.seats, plan.starts, plan.counts, plan.carried, strict=True):
            seat = self[index]
            if carried == 0 and count == 1 and start == len(seat.ids) - 1:
                fed.append(seat.ids[-1:])
                continue
            if carried != count or count < 1 or at + count > len(plan.ids) or start > len(seat.ids):
                raise PlanError(f"seat {index} holds {len(seat.ids)} ids; {count} at {start} do not follow")
            ids = plan.ids[at : at + count]
            at += count
            del seat.ids[start:]
            seat.ids.extend(ids)
            fed.append(ids)
        return fed
