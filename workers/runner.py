"""One loaded model: runs plans, knows nothing of sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from helexa.formats.checkpoint import Checkpoint
from ipc.memfd_array import MemfdArrays
from ipc.messages import Plan, Pooled, PromptLogprobs, Result, RowError, SeatJoin
from workers import inputs, pooling, prompt_scores, sampler
from workers.grammar import Grammars
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import Model, PoolingModel, RecurrentModel, load_model
from workers.ops.protocol import Float32, Ops
from workers.seats import PlanError, Seat, Seats
from workers.shared_step import Capacity, StepRing

PRICE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
PRICE_RUNS = 4
PRICE_LOGIT_ROWS = 8
PRICE_SEQUENCES = 8  # decoding beside each other, for the price of a position
PRICE_POSITIONS = 1024  # that each of them, or a prompt's row, attends to
PRICE_KV_BYTES = 128 * 2**20  # that a measurement may take at most
PRICE_BUDGET_S = 1.0
SCORED_ROWS = 256  # a message of so many log probabilities, with 20 others each, is well within a datagram


@dataclass(frozen=True)
class StepOutput:
    """A step's messages, and whether one of its sequences may have ended (which ends a multi-step run)."""

    row_errors: list[RowError]
    result: Result
    may_end: bool
    scored: list[PromptLogprobs] | list[Pooled] = field(default_factory=list)


class Runner:
    """Weights are loaded at once; `allocate` gives the seats and KV that plans use."""

    def __init__(
        self, file: Checkpoint, ops: Ops, context: int, end_ids: list[int], max_step_tokens: int = 512, max_seats: int = 64
    ) -> None:
        self.ops = ops
        self.model: Model = load_model(file, ops)
        self._recurrent = self.model.recurrent if isinstance(self.model, RecurrentModel) else None
        self._snapshots = 0
        self.context = min(context or self.model.context, self.model.context)
        self.end_ids = end_ids
        self._grammars = Grammars(file, end_ids, self.model.vocab)
        self._max_step_tokens = max_step_tokens
        self._max_seats = max_seats
        self._seats: Seats | None = None
        self._ring: StepRing | None = None
        self._arrays = MemfdArrays()
        self.pooling = self.model.pooling if isinstance(self.model, PoolingModel) else ""
        columns = self.model.width if isinstance(self.model, PoolingModel) and self.pooling else self.model.vocab
        self._logits = self._arrays.allocate(max_seats * columns * 4)
        self.ops.use_logits_buffer(self._logits.array((max_seats, columns), "float32"))

    def bytes_per_block(self) -> int:
        return self.ops.bytes_per_block(self.model.layers, self.model.kv_heads, self.model.head_dim)

    def state_bytes(self) -> int:
        """Of the recurrent state of a sequence; 0 where the model has none."""
        return 0 if self._recurrent is None else self.ops.bytes_per_state(self._recurrent)

    def allocate(self, blocks: int, seats: int, snapshots: int = 0) -> int:
        """Forgets every sequence; at most `max_seats` seats, whose recurrent state may be saved in `snapshots`. Returns the bytes of
        KV and state; raises MemoryError."""
        self._seats = Seats(seats, blocks, -(-self.context // BLOCK_SIZE))
        self._ring = StepRing(self._arrays, Capacity.of(self._max_step_tokens, seats, self.context))
        self._snapshots = snapshots
        states = 0 if self._recurrent is None else self.ops.allocate_state(self._recurrent, seats + snapshots)
        return states + self.ops.allocate_kv(self.model.layers, blocks, self.model.kv_heads, self.model.head_dim)

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
            self._resume_state(join, self._seats)
            if join.params.grammar:  # compiled while the prompt is computed
                self._seats[join.seat].grammar = self._grammars.start(join.params.grammar)
        fed = self._seats.feed(plan)
        try:
            shared = self._ring.write(plan.step, inputs.build(plan, fed, self._seats, self.model.vocab))
        except ValueError as error:
            raise PlanError(str(error)) from None
        logits = self.ops.run(self.model.forward, shared)
        self._save_states(plan, self._seats)
        indices = [index for index, samples in zip(plan.seats, plan.samples, strict=True) if samples]
        seats = [self._seats[index] for index in indices]
        scored: list[PromptLogprobs] | list[Pooled]
        if self.pooling:
            scored, drawn = pooling.pool(plan, logits, self._seats, self.pooling, self.end_ids)
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

    def _resume_state(self, join: SeatJoin, seats: Seats) -> None:
        """A sequence that joins with a history goes on from the state behind it. The seats' states come first, then snapshots."""
        if join.snapshot >= 0:
            self.ops.copy_state(seats.count + self._checked_snapshot(join.snapshot), join.seat)
        elif self._recurrent is not None and join.history:
            raise PlanError(f"seat {join.seat} joins with a history, and no snapshot of the state behind it")

    def _save_states(self, plan: Plan, seats: Seats) -> None:
        for seat, snapshot in zip(plan.save_seats, plan.snapshots, strict=True):
            seats[seat]  # which is not empty
            self.ops.copy_state(seat, seats.count + self._checked_snapshot(snapshot))

    def _checked_snapshot(self, snapshot: int) -> int:
        if self._recurrent is None or not 0 <= snapshot < self._snapshots:
            raise PlanError(f"snapshot {snapshot} of {self._snapshots}")
        return snapshot

    def _scored(self, plan: Plan, logits: Float32, seats: Seats) -> list[PromptLogprobs]:
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

    def measure_prices(self, clock: Callable[[], float]) -> list[tuple[int, float]]:
        """(rows, milliseconds) of a forward, the fastest of a few runs each, within PRICE_BUDGET_S in all. Leaves no KV."""
        prices: list[tuple[int, float]] = []
        sizes = [rows for rows in PRICE_ROWS if rows <= self._max_step_tokens]
        self.ops.allocate_kv(self.model.layers, -(-sizes[-1] // BLOCK_SIZE), self.model.kv_heads, self.model.head_dim)
        started = clock()
        self._fastest(_probe_step(1), clock)
        for rows in sizes:
            if prices and clock() - started > PRICE_BUDGET_S:
                break
            prices.append((rows, self._fastest(_probe_step(rows), clock)))
        return prices

    def measure_logit_row(self, clock: Callable[[], float]) -> float:
        """Milliseconds that a row costs by wanting logits, from a step of a few that all do and one of as many that do not."""
        rows = min(PRICE_LOGIT_ROWS, self._max_step_tokens, self._max_seats)
        few, all_of_them = (self._fastest(_probe_step(rows, logit_rows), clock) for logit_rows in (1, rows))
        return max(0.0, all_of_them - few) / max(1, rows - 1)

    def measure_positions(self, clock: Callable[[], float]) -> tuple[float, float]:
        """Milliseconds of a position that a decoding row attends to, and of one that a row of a prompt does: from a step far into
        its context and one at its beginning. Leaves no KV."""
        sequences = min(PRICE_SEQUENCES, self._max_seats, self._max_step_tokens)
        blocks = min(
            PRICE_POSITIONS // BLOCK_SIZE, self.context // BLOCK_SIZE, PRICE_KV_BYTES // self.bytes_per_block() // sequences
        )
        if blocks < 2:
            return 0.0, 0.0
        self.ops.allocate_kv(self.model.layers, blocks * sequences, self.model.kv_heads, self.model.head_dim)
        rows, positions = PRICE_LOGIT_ROWS, blocks * BLOCK_SIZE
        decode = self._slope(
            _decode_step(sequences, 1), _decode_step(sequences, blocks), sequences * (positions - BLOCK_SIZE), clock
        )
        prompt = self._slope(_prompt_step(rows, 1), _prompt_step(rows, blocks), rows * (positions - BLOCK_SIZE), clock)
        self.ops.allocate_kv(self.model.layers, 1, self.model.kv_heads, self.model.head_dim)
        return decode, prompt

    def _slope(self, near: StepInputs, far: StepInputs, more_positions: int, clock: Callable[[], float]) -> float:
        return max(0.0, self._fastest(far, clock) - self._fastest(near, clock)) / more_positions

    def _fastest(self, step: StepInputs, clock: Callable[[], float]) -> float:
        """Milliseconds of the fastest of PRICE_RUNS runs, or of fewer where one takes long. Leaves no recurrent state."""
        if self._recurrent is not None:
            sequences = len(step.context_lens)
            self.ops.allocate_state(self._recurrent, sequences)
            step = replace(step, state_slots=np.arange(sequences, dtype=np.int32))
        started = clock()
        times: list[float] = []
        while len(times) < PRICE_RUNS and clock() - started < PRICE_BUDGET_S / len(PRICE_ROWS):
            before = clock()
            self.ops.run(self.model.forward, step)
            times.append((clock() - before) * 1e3)
        if self._recurrent is not None:
            self.ops.allocate_state(self._recurrent, 0)
        return min(times)


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


def _probe_step(rows: int, logit_rows: int = 1) -> StepInputs:
    """One sequence of `rows` new tokens of which the last `logit_rows` want logits."""
    blocks = -(-rows // BLOCK_SIZE)
    return StepInputs(
        token_ids=np.zeros(rows, np.int32),
        positions=np.arange(rows, dtype=np.int32),
        sequence_of_row=np.zeros(rows, np.int32),
        row_start=np.array([0, rows], np.int32),
        context_lens=np.array([rows], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.arange(rows - logit_rows, rows, dtype=np.int32),
    )


def _decode_step(sequences: int, blocks: int) -> StepInputs:
    """A row each of sequences that fill so many blocks of their own."""
    rows = np.arange(sequences, dtype=np.int32)
    length = blocks * BLOCK_SIZE
    return StepInputs(
        token_ids=np.zeros(sequences, np.int32),
        positions=np.full(sequences, length - 1, np.int32),
        sequence_of_row=rows,
        row_start=np.arange(sequences + 1, dtype=np.int32),
        context_lens=np.full(sequences, length, np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logit_rows=rows,
    )


def _prompt_step(rows: int, blocks: int) -> StepInputs:
    """The last rows of one sequence that fills so many blocks."""
    length = blocks * BLOCK_SIZE
    return StepInputs(
        token_ids=np.zeros(rows, np.int32),
        positions=np.arange(length - rows, length, dtype=np.int32),
        sequence_of_row=np.zeros(rows, np.int32),
        row_start=np.array([0, rows], np.int32),
        context_lens=np.array([length], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.array([rows - 1], np.int32),
    )
