"""The scheduler of one model: add, abort, credit, plan_step, apply_result. Pure: `now` (seconds) and prices come in as values.

There is no prefill and no decode here: a sequence has `num_computed_tokens` that chase `num_tokens`, and a step gives it some
new tokens. Preemption forgets what was computed and computes it again; since a row's arithmetic never depends on its
neighbours, that changes nothing but time.
"""

from __future__ import annotations

from helexa.errors import RequestError
from helexa.scheduler import suspects
from helexa.scheduler.admission import RETRY_AFTER_S, Limits, Queue, check_possible, check_room
from helexa.scheduler.counters import Counters
from helexa.scheduler.fairness import FairQueue
from helexa.scheduler.kv_memory import KvMemory
from helexa.scheduler.outbox import Outbox
from helexa.scheduler.prices import StepPrices
from helexa.scheduler.request_table import GivenUp, Reminders, RequestTable
from helexa.scheduler.seating import Seating
from helexa.scheduler.sequence import Sequence, State, sequences_of
from helexa.scheduler.snapshots import Snapshots
from helexa.scheduler.step_builder import StepBuilder
from helexa.scheduler.step_in_flight import StepInFlight
from ipc.messages import Abort, Credit, Finish, FinishAck, FinishReason, Generate, Plan, Pooled, PromptLogprobs, Result, RowError

MAX_PASSED_OVER = 8
FINISH_LINGER_S = 60.0  # how long an end that nobody acknowledges is kept


class Scheduler:
    def __init__(self, limits: Limits, prices: StepPrices, eos_ids: frozenset[int], incarnation: int) -> None:
        self.limits = limits
        self.prices = prices
        self.eos_ids = eos_ids
        self.incarnation = incarnation
        self.counters = Counters()
        snapshots = Snapshots(limits.snapshots, limits.snapshot_every) if limits.recurrent else None
        self.memory = KvMemory(limits.blocks, limits.reserve_tokens, limits.cached_blocks, snapshots)
        self.waiting = FairQueue()
        self.seating = Seating(limits.seats, self.memory, self.waiting, self.counters)
        self.outbox = Outbox()
        self._requests = RequestTable()
        self._reminders = Reminders()
        self._in_flight: StepInFlight | None = None
        self._step = 0

    @property
    def running(self) -> list[Sequence]:
        """By arrival at a seat, oldest first."""
        return self.seating.running

    # requests

    def add(self, client: bytes, message: Generate, now: float) -> None:
        """Takes a request, or joins the client to the one it already has. Raises RequestError when it is refused."""
        known = self._requests.choices(client, message.req_id)
        if known:
            self._rejoin(known, message)
            return
        check_possible(message, self.limits)
        if not message.resumed:
            self._check_room(message)
        self.counters.requests += 1
        sequences = sequences_of(client, message, now)
        self._requests.add(client, message.req_id, sequences)
        for sequence in sequences:
            if not self._finish_if_ended(sequence, now):
                self.waiting.push(sequence)
                self._reminders.add(now + self.limits.queue_wait_s, sequence)

    def _check_room(self, message: Generate) -> None:
        waiting = self.waiting
        queue = Queue(len(waiting), waiting.tokens, waiting.waiting_of(message.key), self.seating.num_free)
        try:
            check_room(len(message.seeds), len(message.prompt_ids) * len(message.seeds), message.key, queue, self.limits)
        except RequestError:
            self.counters.refused += 1
            raise

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
        sequence = self._requests.find(client, message.req_id, message.choice)
        if sequence is not None and message.upto > sequence.credit:
            sequence.credit = message.upto
            if not sequence.out_of_credit:
                self.seating.has_credit_again(sequence)
            self.outbox.add(sequence)

    def abort(self, client: bytes, message: Abort, now: float) -> None:
        """Ends a choice. With reason `stop` its end counts the first `keep` output tokens."""
        sequence = self._requests.find(client, message.req_id, message.choice)
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

    def end(self, req_id: str, now: float, note: str) -> int:
        """Ends what runs or waits of the requests of that id, whoever's they are; how many choices it was."""
        open_ones = [item for item in self._requests.named(req_id) if item.state is not State.FINISHED]
        for sequence in open_ones:
            self.counters.aborted += 1
            sequence.aborted_at_step = self._step
            self._finish(sequence, "abort", now, error=note)
        return len(open_ones)

    def acknowledge(self, client: bytes, message: FinishAck) -> None:
        sequence = self._requests.find(client, message.req_id, message.choice)
        if sequence is not None and sequence.state is State.FINISHED:
            self._forget(sequence)

    def drop_client(self, client: bytes, now: float) -> None:
        """The client is gone: its sequences end and nothing is kept for it."""
        for sequence in self._requests.of_client(client):
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
        self.seating.make_room()
        if self._add_suspect(builder):
            return self._send_off(builder, 0)
        self._add_decoding(builder, now)
        decode_rows = len(builder.parts)
        budget = self._add_prefilling(builder, self._prompt_budget(builder))
        self._add_waiting(builder, budget)
        while not builder.parts and self.seating.preempt_youngest():
            self._add_decoding(builder, now)
            self._add_prefilling(builder, self.limits.step_tokens)
        if not builder.parts:
            return None
        return self._send_off(builder, decode_rows)

    def _add_suspect(self, builder: StepBuilder) -> bool:
        """One that workers seem to die of is computed by itself until it is found innocent."""
        first = self.waiting.peek()
        if first is not None and suspects.runs_alone(first):
            self.seating.seat_first()
        for sequence in self.running:
            if suspects.runs_alone(sequence) and not (sequence.decodes and sequence.out_of_credit):
                count = min(self.memory.most_tokens(sequence), self.limits.step_tokens, self._most_rows(builder, sequence))
                return self._schedule(builder, sequence, count)
        return False

    def _add_decoding(self, builder: StepBuilder, now: float) -> None:
        for sequence in self.running:
            computed = sequence.num_computed_tokens
            if computed and len(sequence.tokens) - computed == 1 and not self._stalls(sequence, now):
                self._schedule(builder, sequence, 1)

    def _prompt_budget(self, builder: StepBuilder) -> int:
        """Prompt tokens that may join the decoding rows, by predicted time; a prompt far into its context costs more."""
        furthest = max((sequence.num_computed_tokens for sequence in self.running if not sequence.decodes), default=0)
        return self.prices.prompt_tokens_beside(builder.shape(), furthest, self.limits.step_tokens, self.limits.min_step_ms)

    def _add_prefilling(self, builder: StepBuilder, budget: int) -> int:
        """Parts of prompts, the longest passed over first; returns what is left of the budget."""
        prefilling = [sequence for sequence in self.running if not sequence.decodes]
        for sequence in sorted(prefilling, key=lambda sequence: sequence.passed_over < MAX_PASSED_OVER):
            count = min(self.memory.most_tokens(sequence), budget, self._most_rows(builder, sequence))
            if count > 0 and self._schedule(builder, sequence, count):
                sequence.passed_over = 0
                budget -= count
            else:
                sequence.passed_over += 1
        return budget

    def _add_waiting(self, builder: StepBuilder, budget: int) -> None:
        while budget > 0 and len(self.running) + builder.extra_rows < self.limits.seats:
            first = self.waiting.peek()
            if first is None or suspects.runs_alone(first) or not builder.has_room(first):
                return
            sequence = self.seating.seat_first()
            if sequence is None:
                return
            count = min(self.memory.most_tokens(sequence), budget, self._most_rows(builder, sequence))
            if self._schedule(builder, sequence, count):
                budget -= count

    def _most_rows(self, builder: StepBuilder, sequence: Sequence) -> int:
        """How many tokens of a seated sequence the step's logits have room for: a step has a row a seat."""
        if not sequence.scores_prompt:
            return self.limits.step_tokens
        return max(0, self.limits.seats - builder.extra_rows - len(self.running) + 1)

    def _send_off(self, builder: StepBuilder, decode_rows: int) -> Plan:
        self._step += 1
        counters = self.counters
        for sequence, count in builder.parts:
            sequence.in_flight = True
            if self.limits.recurrent:
                self.memory.plan_snapshot(sequence, count)
            counters.prompt_tokens += min(count, max(0, sequence.request.prompt_len - sequence.num_computed_tokens))
            self.waiting.charge(sequence.request.key, count)
        shape = builder.shape()
        repeat = self._repeat(builder, decode_rows)
        plan = builder.plan(self.incarnation, self._step, repeat, self.seating.leaves)
        self.seating.leaves = []
        if self.limits.recurrent:
            for sequence, _ in builder.parts:
                self.memory.has_joined(sequence)
        self._in_flight = StepInFlight(plan, builder.parts, shape)
        counters.note_plan(plan)
        return plan

    def _repeat(self, builder: StepBuilder, decode_rows: int) -> int:
        """Steps that the worker may run by itself, while the scheduler takes in what they drew: several where all that run decode
        and nobody could be seated. Their blocks are taken at once, and none of them runs past its end or its credit."""
        sequences = [sequence for sequence, _ in builder.parts]
        if not decode_rows == len(sequences) == len(self.running) or self.seating.could_seat():
            return 1
        left = min(min(item.most_tokens - item.num_tokens, item.credit - item.num_output_tokens) for item in sequences)
        steps = max(1, min(self.limits.repeat_steps, left))
        grown = [self.memory.grow(sequence, sequence.num_computed_tokens + steps) is not None for sequence in sequences]
        return steps if all(grown) else 1

    def wants_worker_back(self, device_wanted: bool = False) -> bool:
        """Whether the worker is in a run of several steps that should end; said once a run. `device_wanted`: by another model."""
        step = self._in_flight
        if step is None or step.plan.repeat == 1:
            return False
        if not step.ended() and not device_wanted and not self.seating.could_seat():
            return False
        step.plan.repeat = 1
        return True

    def apply_row_error(self, error: RowError, now: float) -> None:
        """One row failed: that sequence ends, the others go on."""
        sequence = self._computing(error)
        if sequence is not None and sequence.state is not State.FINISHED:
            self.counters.row_errors += error.kind == "row"
            self.counters.request_errors += error.kind == "request"
            self._finish(sequence, "error", now, error=error.error)

    def apply_prompt_logprobs(self, message: PromptLogprobs) -> None:
        """Log probabilities of a prompt come with its step, before the step's result; after a preemption they come again."""
        sequence = self._computing(message)
        if sequence is not None:
            sequence.prompt_logprobs[message.start :] = message.logprobs

    def apply_pooled(self, message: Pooled) -> None:
        """An embedding comes with its prompt's last step, before the step's result."""
        sequence = self._computing(message)
        if sequence is not None:
            sequence.pooled = message.values

    def _computing(self, message: RowError | PromptLogprobs | Pooled) -> Sequence | None:
        """The sequence in the seat that a message about the step in flight names; None where it is about another."""
        step = self._in_flight
        return step.sequence_at(message.seat) if step is not None and step.is_answered_by(message) else None

    def apply_result(self, result: Result, now: float) -> None:
        """Takes a step's tokens; a result of another incarnation or step is dropped."""
        step = self._in_flight
        if step is None or not step.is_answered_by(result):
            return
        self.counters.steps += 1
        drawn = dict(zip(result.seats, result.ids, strict=True))
        for (sequence, count), samples in zip(step.parts, step.plan.samples, strict=True):
            if result.last:
                sequence.in_flight = False
            if sequence.state is State.FINISHED:
                if result.last:
                    self._release(sequence)
                continue
            if result.substep:
                self.waiting.charge(sequence.request.key, count)
            sequence.num_computed_tokens += count
            suspects.note_computed(sequence)
            sequence.sampled_last = False
            self.memory.register(sequence)
            if samples:
                self._append(sequence, drawn.get(sequence.seat, -1), result, now)
        if result.last:
            self._in_flight = None
            self.prices.learn(step.shape, result.milliseconds)

    def _append(self, sequence: Sequence, token: int, result: Result, now: float) -> None:
        if not 0 <= token < self.limits.vocab:
            self._finish(sequence, "error", now, error=f"the worker drew token {token} of {self.limits.vocab}")
            return
        sequence.tokens.append(token)
        sequence.sampled_last = True
        self.counters.output_tokens += 1
        params = sequence.request.params
        if params.logprobs >= 0:
            sequence.logprobs.append(result.logprobs.get(sequence.seat))
        if params.hash_logits:
            sequence.hashes.append(result.hashes.get(sequence.seat, 0))
        self.outbox.add(sequence)
        self._finish_if_ended(sequence, now)

    def worker_lost(self, incarnation: int, now: float) -> None:
        """The worker's memory is gone: what ran waits again, first in line, and is computed again from its ids; all but a
        sequence that workers die of."""
        self.counters.worker_losses += 1
        self.incarnation = incarnation
        parts = [] if self._in_flight is None else self._in_flight.parts
        self._in_flight = None
        culprit = suspects.note_death(part for part in parts if part[0].state is not State.FINISHED)
        if culprit is not None:
            self.counters.poisonous += 1
            error = f"{culprit.worker_deaths} device workers ended while they computed this request; it is not tried again"
            self._finish(culprit, "error", now, error=error)
        for sequence, _ in parts:
            sequence.in_flight = False
            if sequence.state is State.FINISHED:
                self._release(sequence)
        for sequence in reversed(self.running.copy()):
            self.seating.unseat(sequence)
        self.memory.forget_contents()
        self.seating.leaves = []

    def fail(self, error: str, now: float) -> None:
        """No worker will come: every sequence ends."""
        for sequence in [*self.running, *self.waiting, *self.seating.parked.values()]:
            self._finish(sequence, "error", now, error=error)

    # time

    def expire(self, now: float) -> list[GivenUp]:
        """Ends what waited too long for a seat or a reader; the first kind is returned, to be refused."""
        given_up = []
        for sequence in self._reminders.due(now):
            if sequence.state is State.FINISHED:
                if sequence.finished_at + FINISH_LINGER_S <= now:
                    self._forget(sequence)
            elif sequence.stalled_since is not None:
                if sequence.stalled_since + self.limits.slow_client_s <= now:
                    self.counters.aborted += 1
                    note = f"nothing was read for {self.limits.slow_client_s:g} s"
                    self._finish(sequence, "abort", now, output_tokens=sequence.num_sent, error=note)
            elif sequence.state is State.WAITING:
                message = f"no seat came free within {self.limits.queue_wait_s:g} s; try again later"
                given_up += self._give_up(sequence, now, RequestError("queue_timeout", message, retry_after=RETRY_AFTER_S))
        return given_up

    def turn_away(self, now: float, error: RequestError) -> list[GivenUp]:
        """Refuses what waits and never ran."""
        return [given_up for sequence in list(self.waiting) for given_up in self._give_up(sequence, now, error)]

    def _give_up(self, sequence: Sequence, now: float, error: RequestError) -> list[GivenUp]:
        """Refuses the request of a sequence that still waits, unless one of its choices ever ran."""
        request = sequence.request
        group = self._requests.choices(request.client, request.req_id)
        if not group or any(item.ever_seated or item.num_output_tokens for item in group):
            return []
        for item in list(group):
            self._finish(item, "abort", now)
            self._forget(item)
        self.counters.refused += 1
        return [GivenUp(request.client, request.req_id, error)]

    def next_deadline(self) -> float | None:
        """When `expire` may have something to do; it does no harm to ask too early."""
        return self._reminders.next()

    # state

    def num_live(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.seating.parked)

    def knows(self, client: bytes, req_id: str) -> bool:
        return bool(self._requests.choices(client, req_id))

    @property
    def num_requests(self) -> int:
        """Requests that are known, until the ends of all their choices are acknowledged."""
        return len(self._requests)

    def open_requests(self) -> list[str]:
        """Ids of the requests that wait or run."""
        sequences = [*self.running, *self.waiting, *self.seating.parked.values()]
        return list(dict.fromkeys(sequence.request.req_id for sequence in sequences))

    def num_open_of(self, key: str) -> int:
        """A key's requests that wait or run."""
        return self._requests.num_open_of(key)

    def adjust(self, limits: Limits) -> None:
        """Other bounds from now on: of the queue, of times, of the prefix cache. Seats, blocks and context stay."""
        self.limits = limits
        self.memory.adjust(limits.reserve_tokens, limits.cached_blocks)

    def check(self) -> None:
        """Raises AssertionError when a law is broken: blocks and seats are in one place, counts agree."""
        ended = [] if self._in_flight is None else self._in_flight.ended()
        holders = self.running + [sequence for sequence in ended if sequence.seat >= 0]
        self.memory.check(holders)
        self.seating.check(holders)
        for sequence in self.running:
            assert sequence.num_computed_tokens < sequence.num_tokens, "nothing is left to compute, yet it runs"
        assert len(self.waiting) == sum(1 for _ in self.waiting), "the queue is miscounted"

    # the parts

    def _stalls(self, sequence: Sequence, now: float) -> bool:
        """Out of credit: the sequence keeps what it has and waits for its reader."""
        if not sequence.out_of_credit:
            return False
        if sequence.stalled_since is None:
            sequence.stalled_since = now
            self._reminders.add(now + self.limits.slow_client_s, sequence)
        return True

    def _schedule(self, builder: StepBuilder, sequence: Sequence, count: int) -> bool:
        """Adds a part to the step, with the blocks it needs. Where memory does not suffice the sequence pauses: it keeps what it
        has, and goes on when another has ended."""
        if self.memory.grow(sequence, sequence.num_computed_tokens + count) is None:
            self.counters.pauses += 1
            return False
        builder.add(sequence, count)
        return True

    def _finish_if_ended(self, sequence: Sequence, now: float) -> bool:
        ended = sequence.finish_reason(self.eos_ids, self.limits.context)
        if ended is None:
            return False
        reason, stop_token = ended
        self._finish(sequence, reason, now, stop_token=stop_token)
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
        self._reminders.add(now + FINISH_LINGER_S, sequence)
        sequence.stalled_since = None
        self.seating.leave(sequence)
        self.outbox.add(sequence)
        if sequence.seat >= 0 and not sequence.in_flight:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Frees what an ended sequence held, once no step in flight writes there."""
        if sequence.aborted_at_step >= 0:
            self.counters.note_release(self._step - sequence.aborted_at_step)
        self.seating.release(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.outbox.discard(sequence)
        self._requests.forget(sequence)
