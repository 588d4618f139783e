"""The scheduler of one model: add, abort, credit, plan_step, apply_result. Pure: `now` (seconds) and prices come in as values.

There is no prefill and no decode here: a sequence has `num_computed_tokens` that chase `num_tokens`, and a step gives it some
new tokens. Preemption forgets what was computed and computes it again; since a row's arithmetic never depends on its
neighbours, that changes nothing but time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

from helexa.errors import RequestError
from helexa.scheduler.admission import RETRY_AFTER_S, Limits, check_possible, check_room
from helexa.scheduler.block_pool import BlockPool, blocks_for
from helexa.scheduler.outbox import Outbox
from helexa.scheduler.sequence import Request, Sequence, State
from helexa.scheduler.step_builder import PriceTable, StepBuilder, prefill_budget
from ipc.messages import Abort, Credit, Finish, FinishAck, FinishReason, Generate, Plan, Result, RowError

MAX_PASSED_OVER = 8
FINISH_LINGER_S = 60.0  # how long an end that nobody acknowledges is kept


@dataclass
class Counters:
    """Totals since the model was loaded."""

    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    requests: int = 0
    refused: int = 0
    aborted: int = 0
    row_errors: int = 0
    abort_release_steps_max: int = 0  # most steps between an abort and the freeing of what it held
    worker_losses: int = 0


@dataclass(frozen=True)
class GivenUp:
    """A request that waited too long for a seat."""

    client: bytes
    req_id: str
    error: RequestError


class Scheduler:
    def __init__(self, limits: Limits, prices: PriceTable, eos_ids: frozenset[int], incarnation: int) -> None:
        self.limits = limits
        self.prices = prices
        self.eos_ids = eos_ids
        self.incarnation = incarnation
        self.counters = Counters()
        self.pool = BlockPool(limits.blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # by arrival at a seat, oldest first
        self._requests: dict[tuple[bytes, str], list[Sequence]] = {}
        self._free_seats = list(range(limits.seats - 1, -1, -1))
        self._leaves: list[int] = []
        self._in_flight: list[tuple[Sequence, int]] | None = None
        self._in_flight_step = -1
        self._in_flight_sampled: dict[int, Sequence] = {}
        self._step = 0
        self.outbox = Outbox()
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._order = itertools.count()

    # requests

    def add(self, client: bytes, message: Generate, now: float) -> None:
        """Takes a request, or joins the client to the one it already has. Raises RequestError when it is refused."""
        known = self._requests.get((client, message.req_id))
        if known is not None:
            self._rejoin(known, message)
            return
        check_possible(message, self.limits)
        if not message.resumed:
            try:
                check_room(len(message.seeds), len(self.waiting), len(self._free_seats), self.limits)
            except RequestError:
                self.counters.refused += 1
                raise
        self.counters.requests += 1
        request = Request(client, message.req_id, len(message.prompt_ids), message.params, len(message.seeds), now)
        sequences = [
            Sequence(request, choice, seed, message.prompt_ids + output, message.credit, len(output))
            for choice, (seed, output) in enumerate(zip(message.seeds, message.output_ids, strict=True))
        ]
        self._requests[client, message.req_id] = sequences
        for sequence in sequences:
            if sequence.request.params.hash_logits:
                sequence.hashes = [0] * sequence.num_output_tokens
            if sequence.request.params.logprobs >= 0:
                sequence.logprobs = [None] * sequence.num_output_tokens
            if not self._finish_if_ended(sequence, now):
                sequence.ever_seated = message.resumed  # it ran before: it may wait as long as it takes
                self.waiting.append(sequence)
                self._remind(now + self.limits.queue_wait_s, sequence)

    def _rejoin(self, sequences: list[Sequence], message: Generate) -> None:
        request = sequences[0].request
        if request.num_choices != len(message.output_ids) or sequences[0].tokens[: request.prompt_len] != message.prompt_ids:
            raise RequestError("request_conflict", f"{message.req_id} is another request of yours; use a new id", "req_id")
        for sequence in sequences:  # choices whose end was acknowledged are no longer among them
            sequence.num_sent = min(len(message.output_ids[sequence.choice]), sequence.num_output_tokens)
            sequence.credit = max(sequence.credit, message.credit)
            sequence.finish_sent = False
            self.outbox.add(sequence)

    def credit(self, client: bytes, message: Credit) -> None:
        sequence = self._find(client, message.req_id, message.choice)
        if sequence is not None and message.upto > sequence.credit:
            sequence.credit = message.upto
            if not sequence.out_of_credit:
                sequence.stalled_since = None
            self.outbox.add(sequence)

    def abort(self, client: bytes, message: Abort, now: float) -> None:
        """Ends a choice. With reason `stop` its end counts the first `keep` output tokens."""
        sequence = self._find(client, message.req_id, message.choice)
        if sequence is None or sequence.state is State.FINISHED:
            return
        sequence.aborted_at_step = self._step
        if message.reason == "stop":
            keep = sequence.num_output_tokens if message.keep is None else min(message.keep, sequence.num_output_tokens)
            self._finish(sequence, "stop", now, output_tokens=keep)
            return
        self.counters.aborted += 1
        self._finish(sequence, "abort", now)
        if message.reason == "cancel":
            self._forget(sequence)

    def acknowledge(self, client: bytes, message: FinishAck) -> None:
        sequence = self._find(client, message.req_id, message.choice)
        if sequence is not None and sequence.state is State.FINISHED:
            self._forget(sequence)

    def drop_client(self, client: bytes, now: float) -> None:
        """The client is gone: its sequences end and nothing is kept for it."""
        for sequences in [group for (owner, _), group in self._requests.items() if owner == client]:
            for sequence in list(sequences):
                if sequence.state is not State.FINISHED:
                    self.counters.aborted += 1
                    sequence.aborted_at_step = self._step
                    self._finish(sequence, "abort", now)
                self._forget(sequence)

    # steps

    def plan_step(self, now: float) -> Plan | None:
        """The next step, or None when nothing can run or one is in flight."""
        if self._in_flight is not None:
            return None
        builder = StepBuilder()
        decoding = [sequence for sequence in self.running if sequence.decodes and not self._stalls(sequence, now)]
        for sequence in decoding:
            if sequence.state is State.RUNNING:  # an older one may have preempted it
                self._schedule(builder, sequence, 1)
        decode_rows = len(builder.parts)
        budget = prefill_budget(decode_rows, self.prices, self.limits.step_tokens, self.limits.min_step_ms)
        for sequence in self._prefill_order():
            if sequence.state is not State.RUNNING:
                continue
            if budget <= 0:
                sequence.passed_over += 1
                continue
            count = min(sequence.num_new_tokens, budget)
            if self._schedule(builder, sequence, count):
                sequence.passed_over = 0
                budget -= count
        while budget > 0 and self.waiting and self._seat(self.waiting[0]):
            sequence = self.waiting.popleft()
            count = min(sequence.num_new_tokens, budget)
            if not self._schedule(builder, sequence, count):
                break
            budget -= count
        if not builder.parts:
            return None
        return self._send_off(builder)

    def _send_off(self, builder: StepBuilder) -> Plan:
        self._step += 1
        plan = builder.plan(self.incarnation, self._step, self._leaves)
        self._leaves = []
        self._in_flight = builder.parts
        self._in_flight_step = self._step
        self._in_flight_sampled = {}
        for (sequence, count), samples in zip(builder.parts, plan.samples, strict=True):
            sequence.joined = True
            sequence.in_flight = True
            if samples:
                self._in_flight_sampled[sequence.seat] = sequence
            self.counters.prompt_tokens += min(count, max(0, sequence.request.prompt_len - sequence.num_computed_tokens))
        return plan

    def apply_row_error(self, error: RowError, now: float) -> None:
        """One row failed: that sequence ends, the others go on."""
        if error.incarnation != self.incarnation or error.step != self._in_flight_step:
            return
        sequence = self._in_flight_sampled.get(error.seat)
        if sequence is not None and sequence.state is not State.FINISHED:
            self.counters.row_errors += 1
            self._finish(sequence, "error", now, error=error.error)

    def apply_result(self, result: Result, now: float) -> None:
        """Takes a step's tokens; a result of another incarnation or step is dropped."""
        if self._in_flight is None or result.incarnation != self.incarnation or result.step != self._in_flight_step:
            return
        drawn = dict(zip(result.seats, result.ids, strict=True))
        parts, self._in_flight = self._in_flight, None
        self.counters.steps += 1
        for sequence, count in parts:
            sequence.in_flight = False
            if sequence.state is State.FINISHED:
                self._release(sequence)
                continue
            sequence.num_computed_tokens += count
            sequence.sampled_last = False
            if sequence.seat in self._in_flight_sampled:
                self._append(sequence, drawn.get(sequence.seat, -1), result, now)

    def _append(self, sequence: Sequence, token: int, result: Result, now: float) -> None:
        if not 0 <= token < self.limits.vocab:
            self._finish(sequence, "error", now, error=f"the worker drew token {token} of {self.limits.vocab}")
            return
        sequence.tokens.append(token)
        sequence.sampled_last = True
        self.counters.output_tokens += 1
        if sequence.request.params.logprobs >= 0:
            sequence.logprobs.append(result.logprobs.get(sequence.seat))
        if sequence.request.params.hash_logits:
            sequence.hashes.append(result.hashes.get(sequence.seat, 0))
        self.outbox.add(sequence)
        self._finish_if_ended(sequence, now)

    def worker_lost(self, incarnation: int) -> None:
        """The worker's memory is gone: what ran waits again, first in line, and is computed again from its ids."""
        self.counters.worker_losses += 1
        self.incarnation = incarnation
        parts, self._in_flight = self._in_flight or [], None
        self._in_flight_sampled = {}
        for sequence, _ in parts:
            sequence.in_flight = False
            if sequence.state is State.FINISHED:
                self._release(sequence)
        for sequence in reversed(self.running.copy()):
            self._unseat(sequence)
        self._leaves = []

    # time

    def expire(self, now: float) -> list[GivenUp]:
        """Ends what waited too long for a seat or a reader; the first kind is returned, to be refused."""
        given_up = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, sequence = heapq.heappop(self._deadlines)
            if sequence.state is State.FINISHED:
                if sequence.finished_at + FINISH_LINGER_S <= now:
                    self._forget(sequence)
            elif sequence.stalled_since is not None:
                if sequence.stalled_since + self.limits.slow_client_s <= now:
                    self.counters.aborted += 1
                    note = f"nothing was read for {self.limits.slow_client_s:g} s"
                    self._finish(sequence, "abort", now, output_tokens=sequence.num_sent, error=note)
            elif sequence.state is State.WAITING:
                given_up += self._give_up(sequence, now)
        return given_up

    def _give_up(self, sequence: Sequence, now: float) -> list[GivenUp]:
        """Refuses the request of a sequence that still waits, unless one of its choices ever ran."""
        request = sequence.request
        group = self._requests.get((request.client, request.req_id), [])
        if any(item.ever_seated or item.num_output_tokens for item in group):
            return []
        for item in list(group):
            self._finish(item, "abort", now)
            self._forget(item)
        self.counters.refused += 1
        message = f"no seat came free within {self.limits.queue_wait_s:g} s; try again later"
        return [GivenUp(request.client, request.req_id, RequestError("queue_timeout", message, retry_after=RETRY_AFTER_S))]

    def next_deadline(self) -> float | None:
        """When `expire` may have something to do; it does no harm to ask too early."""
        return self._deadlines[0][0] if self._deadlines else None

    def _remind(self, when: float, sequence: Sequence) -> None:
        heapq.heappush(self._deadlines, (when, next(self._order), sequence))

    # state

    def num_live(self) -> int:
        return len(self.waiting) + len(self.running)

    def check(self) -> None:
        """Raises AssertionError when a law is broken: blocks and seats are in one place, counts agree."""
        self.pool.check()
        held = [block for sequence in self._holders() for block in sequence.blocks]
        assert len(held) == len(set(held)) == self.pool.num_used, "a used block has no holder, or two"
        seats = [sequence.seat for sequence in self._holders()]
        assert len(set(seats)) == len(seats) and len(seats) + len(self._free_seats) == self.limits.seats, "a seat is lost"
        for sequence in self.running:
            assert sequence.num_computed_tokens < sequence.num_tokens, "nothing is left to compute, yet it runs"
            assert len(sequence.blocks) >= blocks_for(sequence.num_computed_tokens), "computed tokens have no block"

    def _holders(self) -> list[Sequence]:
        ended = [sequence for sequence, _ in self._in_flight or [] if sequence.state is State.FINISHED and sequence.seat >= 0]
        return self.running + ended

    # the parts

    def _find(self, client: bytes, req_id: str, choice: int) -> Sequence | None:
        return next((item for item in self._requests.get((client, req_id), []) if item.choice == choice), None)

    def _stalls(self, sequence: Sequence, now: float) -> bool:
        """Out of credit: the sequence keeps what it has and waits for its reader."""
        if not sequence.out_of_credit:
            return False
        if sequence.stalled_since is None:
            sequence.stalled_since = now
            self._remind(now + self.limits.slow_client_s, sequence)
        return True

    def _prefill_order(self) -> list[Sequence]:
        prefilling = [sequence for sequence in self.running if not sequence.decodes]
        return sorted(prefilling, key=lambda sequence: sequence.passed_over < MAX_PASSED_OVER)

    def _seat(self, sequence: Sequence) -> bool:
        """Gives a waiting sequence a seat if one is free and its tokens fit beside what others hold."""
        if not self._free_seats or blocks_for(sequence.num_tokens) > self.pool.num_free:
            return False
        sequence.seat = self._free_seats.pop()
        sequence.state = State.RUNNING
        sequence.ever_seated = True
        self.running.append(sequence)
        return True

    def _schedule(self, builder: StepBuilder, sequence: Sequence, count: int) -> bool:
        """Adds a part to the step, with the blocks it needs; the youngest sequences give theirs up when none are free."""
        needed = blocks_for(sequence.num_computed_tokens + count) - len(sequence.blocks)
        blocks = self.pool.allocate(needed) if needed > 0 else []
        while blocks is None:
            youngest = self.running[-1]
            self._preempt(youngest)
            builder.drop(youngest)
            if youngest is sequence:
                return False
            blocks = self.pool.allocate(needed)
        sequence.blocks.extend(blocks)
        builder.add(sequence, count, blocks)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.counters.preemptions += 1
        self._unseat(sequence)

    def _unseat(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        sequence.state = State.WAITING
        sequence.num_computed_tokens = 0
        sequence.joined = sequence.sampled_last = False
        self.waiting.appendleft(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        if sequence.joined:
            self._leaves.append(sequence.seat)
        self._free_seats.append(sequence.seat)
        sequence.seat = -1

    def _finish_if_ended(self, sequence: Sequence, now: float) -> bool:
        ended = sequence.finish_reason(self.eos_ids, self.limits.context)
        if ended is None:
            return False
        reason, stop_token = ended
        self._finish(sequence, "stop" if reason == "stop" else "length", now, stop_token=stop_token)
        return True

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        output_tokens: int | None = None,
        stop_token: int | None = None,
        error: str = "",
    ) -> None:
        output = sequence.num_output_tokens if output_tokens is None else output_tokens
        sequence.finish = Finish(reason, sequence.request.prompt_len, sequence.num_cached_tokens, output, stop_token, error)
        sequence.finished_at = now
        self._remind(now + FINISH_LINGER_S, sequence)
        sequence.stalled_since = None
        if sequence.state is State.WAITING and sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self.running.remove(sequence)
        sequence.state = State.FINISHED
        self.outbox.add(sequence)
        if sequence.seat >= 0 and not sequence.in_flight:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Frees what an ended sequence held, once no step in flight writes there."""
        if sequence.aborted_at_step >= 0:
            steps = self._step - sequence.aborted_at_step
            self.counters.abort_release_steps_max = max(self.counters.abort_release_steps_max, steps)
        self._give_back(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.outbox.discard(sequence)
        key = (sequence.request.client, sequence.request.req_id)
        group = self._requests.get(key)
        if group is not None and sequence in group:
            group.remove(sequence)
            if not group:
                del self._requests[key]
