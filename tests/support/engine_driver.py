"""Drives the pure scheduler with a worker made of arithmetic: the next token is a function of the ids so far, as in a model."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field

from helexa.scheduler.admission import Limits
from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.prices import PriceTable, StepPrices
from helexa.scheduler.scheduler import Scheduler
from ipc.messages import Abort, Credit, Finish, FinishAck, Generate, Loaded, Plan, Result, SamplingParams

VOCAB = 50
END_ID = 2
CLIENT = b"client"
LOADED = Loaded(
    free_bytes=64 * 1024 * 100,
    memory_note="a test",
    weight_bytes=7,
    bytes_per_block=1024,
    context=512,
    vocab=VOCAB,
    eos_ids=[END_ID],
    prices=[(1, 1.0), (64, 64.0)],
    logit_row_ms=0.0,
    decode_position_ms=0.0,
    prompt_position_ms=0.0,
    ops="o",
    threads_note="1 of 2 CPUs",
    remedy="",
    fingerprint="f",
    load_seconds=1.0,
)


def next_token(ids: list[int], seed: int) -> int:
    digest = hashlib.blake2b(bytes(str((ids, seed)), "ascii"), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def expected_output(prompt: list[int], seed: int, params: SamplingParams, context: int = 512) -> list[int]:
    """What a sequence must be answered, by itself."""
    ids = list(prompt)
    while len(ids) - len(prompt) < params.max_tokens and len(ids) < context:
        ids.append(next_token(ids, seed))
        output = len(ids) - len(prompt)
        if output > params.min_tokens and ((ids[-1] == END_ID and not params.ignore_eos) or ids[-1] in params.stop_token_ids):
            break
    return ids[len(prompt) :]


def make_scheduler(**changes: object) -> Scheduler:
    values: dict[str, object] = {
        "context": 512,
        "vocab": VOCAB,
        "seats": 8,
        "blocks": 64,
        "queue_depth": 16,
        "queue_tokens": 100_000,
        "queue_wait_s": 30.0,
        "step_tokens": 64,
        "min_step_ms": 0.0,
        "slow_client_s": 60.0,
        "reserve_tokens": 16,
        "cached_blocks": 16,
        "repeat_steps": 1,
        **changes,
    }
    limits = Limits(**values)  # type: ignore[arg-type]
    return Scheduler(limits, StepPrices(PriceTable([(1, 1.0), (128, 128.0)])), frozenset({END_ID}), incarnation=1)


def generate(req_id: str, prompt: list[int], credit: int = 10_000, seeds: list[int] | None = None, **params: object) -> Generate:
    seeds = seeds or [0]
    params = {"max_tokens": 20, **params}
    return Generate(req_id, "m", prompt, [[] for _ in seeds], seeds, SamplingParams(**params), credit)  # type: ignore[arg-type]


@dataclass
class FakeWorker:
    """Checks each plan against what it holds of each seat, as the real one does, and writes KV as (block, place) -> id."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)
    memory: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    recurrent: bool = False
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by seat: the ids that its recurrent state is made of
    snapshots: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def run(self, plan: Plan) -> Result:
        self.plans.append(plan)
        for seat in plan.leaves:
            self.ids.pop(seat, None)
            self.tables.pop(seat, None)
        for join in plan.joins:
            history = list(array("i", join.history))
            self.ids[join.seat], self.tables[join.seat], self.seeds[join.seat] = history, [], join.seed
            if join.snapshot >= 0:
                assert self.recurrent and self.snapshots[join.snapshot] == tuple(history), "another's snapshot"
                self.states[join.seat] = tuple(history)
            else:
                assert not (self.recurrent and history), "a history without its state"
                self.states[join.seat] = ()
        for seat, block in zip(plan.block_seats, plan.blocks, strict=True):
            self.tables[seat].append(block)
        at, seats, drawn = 0, [], []
        for seat, start, count, carried, samples in zip(
            plan.seats, plan.starts, plan.counts, plan.carried, plan.samples, strict=True
        ):
            ids = self.ids[seat]
            if carried:
                assert carried == count and start <= len(ids)
                del ids[start:]
                ids.extend(plan.ids[at : at + count])
                at += count
            else:
                assert count == 1 and start == len(ids) - 1
            table = self.tables[seat]
            assert len(table) * BLOCK_SIZE >= start + count, "computed past its blocks"
            for position in range(start):  # what it attends to must still be its own
                assert self.memory[table[position // BLOCK_SIZE], position % BLOCK_SIZE] == tuple(ids[: position + 1]), (
                    "KV was overwritten"
                )
            for position in range(start, start + count):
                self.memory[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = tuple(ids[: position + 1])
            if self.recurrent:
                assert self.states[seat] == tuple(ids[:start]), "a state of other ids"
                self.states[seat] = tuple(ids[: start + count])
            if samples:
                token = next_token(ids, self.seeds[seat])
                ids.append(token)
                seats.append(seat)
                drawn.append(token)
        assert at == len(plan.ids)
        for seat, snapshot in zip(plan.save_seats, plan.snapshots, strict=True):
            self.snapshots[snapshot] = self.states[seat]
        return Result(plan.incarnation, plan.step, 0, plan.repeat == 1, seats, drawn, {}, {}, 1.0)

    def run_all(self, plan: Plan, most: int = 1000) -> list[Result]:
        """All steps of a plan, as the worker runs them by itself: it stops after an end, or is interrupted after `most`."""
        repeat, results = plan.repeat, []
        for substep in range(repeat):
            result = self.run(plan)
            result.substep = substep
            result.last = substep + 1 in (repeat, most) or END_ID in result.ids
            results.append(result)
            if result.last:
                break
            starts = [start + count for start, count in zip(plan.starts, plan.counts, strict=True)]
            ones = [1] * len(plan.seats)
            plan = Plan(
                plan.incarnation,
                plan.step,
                repeat,
                [],
                [],
                plan.seats,
                starts,
                ones,
                [0] * len(ones),
                [True] * len(ones),
                [],
                [],
                [],
            )
        return results


@dataclass
class Peer:
    """A client: holds what it was sent, extends credit when told to, acknowledges ends."""

    scheduler: Scheduler
    name: bytes = CLIENT
    held: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    finishes: dict[tuple[str, int], Finish] = field(default_factory=dict)

    def receive(self, acknowledge: bool = True) -> None:
        for sequence, start, end, finish in self.scheduler.outbox.due():
            if sequence.request.client != self.name:
                continue
            key = (sequence.request.req_id, sequence.choice)
            held = self.held.setdefault(key, [])
            assert start <= len(held), "a gap"
            prompt = sequence.request.prompt_len
            held.extend(sequence.tokens[prompt + len(held) : prompt + end])
            self.scheduler.outbox.sent(sequence, end, finish)
            if finish is not None:
                self.finishes[key] = finish
                if acknowledge:
                    self.scheduler.acknowledge(self.name, FinishAck(*key))

    def abort(self, req_id: str, choice: int = 0, reason: str = "cancel", keep: int | None = None, now: float = 0.0) -> None:
        self.scheduler.abort(self.name, Abort(req_id, choice, reason, keep), now)  # type: ignore[arg-type]

    def credit(self, req_id: str, upto: int, choice: int = 0) -> None:
        self.scheduler.credit(self.name, Credit(req_id, choice, upto))


def step(scheduler: Scheduler, worker: FakeWorker, peer: Peer, now: float = 0.0) -> Plan | None:
    """One whole step, with the laws checked before and after."""
    plan = scheduler.plan_step(now)
    scheduler.check()
    for result in worker.run_all(plan) if plan is not None else []:
        scheduler.apply_result(result, now)
        scheduler.check()
        peer.receive()
    peer.receive()
    return plan


def run_until_idle(scheduler: Scheduler, worker: FakeWorker, peer: Peer, most: int = 10_000) -> int:
    for count in range(most):
        if step(scheduler, worker, peer) is None:
            return count
    raise AssertionError("the scheduler does not come to rest")
