"""One loaded model: runs plans, knows nothing of sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from helexa.formats.checkpoint import Checkpoint
from ipc.memfd_array import MemfdArrays
from ipc.messages import Plan, Pooled, PromptLogprobs, Result, RowError
from ipc.shared_array import ArrayHandle, SharedAllocation
from workers import inputs, pooling, prompt_scores, sampler
from workers.grammar import Grammars
from workers.group import Group, new_board
from workers.held_model import HeldModel
from workers.ops.protocol import Float32, Logits, Ops
from workers.seats import PlanError, Seat, Seats
from workers.shared_step import HOST_HANDLES, Capacity, StepRing
from workers.weights.sharding import Shard

SCORED_ROWS = 256  # a message of so many log probabilities, with 20 others each, is well within a datagram


@dataclass(frozen=True)
class StepOutput:
    """A step's messages, and whether one of its sequences may have ended (which ends a multi-step run)."""

    row_errors: list[RowError]
    result: Result
    may_end: bool
    scored: list[PromptLogprobs] | list[Pooled] = field(default_factory=list)


class Runner:
    """Rank 0 of a model, or all of it. Weights are loaded at once; `allocate` gives the seats and KV that plans use."""

    def __init__(
        self,
        file: Checkpoint,
        ops: Ops,
        context: int,
        end_ids: list[int],
        max_step_tokens: int = 512,
        max_seats: int = 64,
        ranks: int = 1,
    ) -> None:
        self.held = HeldModel(file, ops, context, max_step_tokens, max_seats, Shard(0, ranks))
        self.ops, self.model, self.context, self.pooling = ops, self.held.model, self.held.context, self.held.pooling
        self.end_ids = end_ids
        self._grammars = Grammars(file, end_ids, self.model.vocab)
        self._arrays = MemfdArrays()
        self._seats: Seats | None = None
        self._ring: StepRing | None = None
        self._ranks = ranks
        self._board: SharedAllocation | None = None
        self.group: Group | None = None
        self._logits = self._arrays.allocate(max_seats * self.held.columns * 4)
        self.ops.use_logits_buffer(self._logits_array())

    def _logits_array(self) -> Float32:
        logits: Float32 = self._logits.array((self.held.max_seats, self.held.columns), "float32")
        return logits

    def export(self, spins: int) -> list[ArrayHandle]:
        """Makes what all ranks of a new group share; the others open it by these handles."""
        self.leave()
        self._board = new_board(self._arrays, self._ranks)
        board = self._board.array((self._board.nbytes,), "uint8")
        self.group = Group(0, self._ranks, board, self._logits_array(), spins)
        self.ops.use_group(self.group)
        capacity = Capacity.of(self.held.max_step_tokens, self.held.max_seats, self.context)
        self._ring = StepRing(self._arrays, capacity, self._ranks)
        logits = self._logits.export((self.held.max_seats, self.held.columns), "float32")
        return [self._board.export(board.shape, "uint8"), self._ring.handle(), logits, *self.held.share(self._ranks)]

    def join(self, handles: list[list[ArrayHandle]], spins: int) -> Group:
        """The others have opened what `export` made."""
        if self.group is None or len(handles) != self._ranks:
            raise PlanError(f"{len(handles)} ranks join a group of {self._ranks}")
        self.held.open_shares([handles[0][HOST_HANDLES:], *handles[1:]])
        return self.group

    def leave(self) -> None:
        """Ends the group, if there is one, for all its ranks."""
        if self.group is None or self._board is None:
            return
        self.group.leave()
        self.ops.use_group(None)
        self.group = self._seats = None
        self._close_ring()
        with contextlib.suppress(BufferError):  # whoever still looks at it frees it
            self._board.close()
        self._board = None

    def _close_ring(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def bytes_per_block(self) -> int:
        return self.held.bytes_per_block()

    def state_bytes(self) -> int:
        """Of the recurrent state of a sequence; 0 where the model has none."""
        return self.held.state_bytes()

    def allocate(self, blocks: int, seats: int, snapshots: int = 0) -> int:
        """Forgets every sequence; at most `max_seats` seats, whose recurrent state may be saved in `snapshots`. Returns the bytes of
        KV and state; raises MemoryError."""
        self._seats = Seats(seats, blocks, self.held.blocks_per_sequence)
        if self.group is None:
            self._close_ring()
            self._ring = StepRing(self._arrays, Capacity.of(self.held.max_step_tokens, seats, self.context))
        return self.held.allocate(blocks, seats, snapshots)

    def seat(self, index: int) -> Seat:
        """What is remembered of a running sequence. Raises PlanError for an empty seat."""
        if self._seats is None:
            raise PlanError("there are no seats before AllocateKV")
        return self._seats[index]

    def step(self, plan: Plan, substep: int, clock: Callable[[], float]) -> StepOutput:
        """Runs a plan's step number `substep`; raises PlanError where plan and seats disagree. `clock` is in seconds."""
        started = clock()
        if self._seats is None or self._ring is None:
            raise PlanError("a plan came before AllocateKV")
        self._seats.apply(plan)
        for join in plan.joins:
            self.held.resume_state(join)
            if join.params.grammar:  # compiled while the prompt is computed
                self._seats[join.seat].grammar = self._grammars.start(join.params.grammar)
        fed = self._seats.feed(plan)
        try:
            shared = self._ring.write(inputs.build(plan, fed, self._seats, self.model.vocab))
        except ValueError as error:
            raise PlanError(str(error)) from None
        if self.group is not None:
            self.group.tell()
        logits = self.held.run(shared)
        for index in plan.save_seats:
            self._seats[index]  # which is not empty
        self.held.save_states(plan)
        indices = [index for index, samples in zip(plan.seats, plan.samples, strict=True) if samples]
        seats = [self._seats[index] for index in indices]
        scored: list[PromptLogprobs] | list[Pooled]
        if self.pooling:
            scored, drawn = pooling.pool(plan, np.asarray(logits), self._seats, self.pooling, self.end_ids)
        else:
            scored = self._scored(plan, logits, self._seats)
            drawn = sampler.draw(logits[_drawn_rows(plan, self._seats)], seats, self.ops, self.end_ids, self._grammars)
        for seat, token in zip(seats, drawn.ids, strict=True):
            if token >= 0:
                seat.ids.append(token)
        errors = [
            RowError(plan.incarnation, plan.step, index, error, "request" if row in drawn.failed else "row")
            for row, (index, error) in enumerate(zip(indices, drawn.errors, strict=True))
            if error
        ]
        ends = any(
            token in self.end_ids or token in seat.params.stop_token_ids for seat, token in zip(seats, drawn.ids, strict=True)
        )
        result = Result(
            incarnation=plan.incarnation,
            step=plan.step,
            substep=substep,
            last=substep + 1 == plan.repeat,
            seats=indices,
            ids=drawn.ids,
            logprobs={indices[row]: value for row, value in drawn.logprobs.items()},
            hashes={indices[row]: value for row, value in drawn.hashes.items()},
            milliseconds=(clock() - started) * 1e3,
        )
        return StepOutput(errors, result, bool(errors) or ends, scored)

    def end_early(self) -> None:
        """The other ranks need not wait for another step of the plan's `repeat`."""
        if self.group is not None and self._ring is not None:
            self._ring.write_end()
            self.group.tell()

    def _scored(self, plan: Plan, logits: Logits, seats: Seats) -> list[PromptLogprobs]:
        """Log probabilities of prompt tokens, in messages of at most SCORED_ROWS."""
        messages, at = [], 0
        for index, start, count, samples in zip(plan.seats, plan.starts, plan.counts, plan.samples, strict=True):
            scored = inputs.scored_count(seats[index], start, count)
            if scored or seats[index].unscored is not None:
                first, values = prompt_scores.score(seats[index], start, logits[at : at + scored])
                for begin in range(0, len(values), SCORED_ROWS):
                    part = values[begin : begin + SCORED_ROWS]
                    messages.append(PromptLogprobs(plan.incarnation, plan.step, index, first + begin, part))
            at += scored + samples
        return messages


def next_plan(plan: Plan) -> Plan:
    """The step after a plan of decode rows, within its `repeat`: one more position each, nothing else new."""
    return Plan(
        plan.incarnation,
        plan.step,
        plan.repeat,
        [],
        [],
        plan.seats,
        [start + count for start, count in zip(plan.starts, plan.counts, strict=True)],
        [1] * len(plan.seats),
        [0] * len(plan.seats),
        [True] * len(plan.seats),
        [],
        [],
        [],
    )


def _drawn_rows(plan: Plan, seats: Seats) -> slice | list[int]:
    """Which of a step's logits are drawn from; all, unless a prompt is scored."""
    drawn, at = [], 0
    for index, start, count, samples in zip(plan.seats, plan.starts, plan.counts, plan.samples, strict=True):
        scored = inputs.scored_count(seats[index], start, count)
        at += scored
        if samples:
            drawn.append(at)
            at += 1
    return slice(None) if len(drawn) == at else drawn
