"""Random arrivals, cancels, credit, memory pressure, lost workers: the laws hold after every step and no reply changes."""

from __future__ import annotations

from typing import Any, ClassVar

from engine_driver import CLIENT, FakeWorker, Peer, expected_output, generate, make_scheduler, run_until_idle, step
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from helexa.errors import RequestError


class SchedulerMachine(RuleBasedStateMachine):
    limits: ClassVar[dict[str, Any]] = {}

    def __init__(self):
        super().__init__()
        self.scheduler = make_scheduler(
            blocks=24, seats=5, queue_depth=8, step_tokens=32, context=200, repeat_steps=4, cached_blocks=12, **self.limits
        )
        self.worker = self.new_worker()
        self.peer = Peer(self.scheduler)
        self.asked = {}
        self.cancelled = set()
        self.incarnation = 1
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(3, 49), min_size=1, max_size=60),
        max_tokens=st.integers(1, 60),
        choices=st.integers(1, 3),
        credit=st.sampled_from([0, 1, 5, 1000]),
        min_tokens=st.integers(0, 5),
        alike=st.integers(0, 40),
        priority=st.sampled_from(["interactive", "background"]),
        key=st.sampled_from(["", "a", "b"]),
    )
    def arrive(self, prompt, max_tokens, choices, credit, min_tokens, alike, priority, key):
        self.count += 1
        prompt = [7] * alike + prompt
        seeds = [self.count * 10 + choice for choice in range(choices)]
        message = generate(f"r{self.count}", prompt, credit=credit, seeds=seeds, max_tokens=max_tokens, min_tokens=min_tokens)
        message.priority, message.key = priority, key
        try:
            self.scheduler.add(CLIENT, message, 0.0)
        except RequestError as error:
            assert error.code in ("queue_full", "too_many_requests")
            return
        self.asked[message.req_id] = message

    @rule(steps=st.integers(1, 12))
    def run(self, steps):
        for _ in range(steps):
            step(self.scheduler, self.worker, self.peer)

    @rule(most=st.integers(1, 3), cancels=st.booleans())
    def interrupt(self, most, cancels):
        """A run of several steps that is called back, with or without its sequence having ended."""
        plan = self.scheduler.plan_step(0.0)
        if plan is None:
            return
        if cancels:
            sequence = self.scheduler.running[0]
            self.peer.abort(sequence.request.req_id, sequence.choice)
            self.cancelled.add(sequence.request.req_id)
        for result in self.worker.run_all(plan, most):
            self.scheduler.apply_result(result, 0.0)
            self.scheduler.check()
        self.peer.receive()

    @rule(data=st.data())
    def cancel(self, data):
        if self.asked:
            req_id = data.draw(st.sampled_from(sorted(self.asked)))
            for choice in range(len(self.asked[req_id].seeds)):
                self.peer.abort(req_id, choice)
            self.cancelled.add(req_id)

    @rule(data=st.data(), upto=st.integers(0, 80))
    def extend_credit(self, data, upto):
        if self.asked:
            req_id = data.draw(st.sampled_from(sorted(self.asked)))
            for choice in range(len(self.asked[req_id].seeds)):
                self.peer.credit(req_id, upto, choice)

    @rule(in_flight=st.booleans())
    def lose_worker(self, in_flight):
        if in_flight:
            self.scheduler.plan_step(0.0)
        self.incarnation += 1
        self.scheduler.worker_lost(self.incarnation, 0.0)
        self.worker = self.new_worker()

    def new_worker(self):
        return FakeWorker(recurrent=self.scheduler.limits.recurrent)

    @invariant()
    def laws_hold(self):
        self.scheduler.check()

    def teardown(self):
        for req_id, message in self.asked.items():
            for choice in range(len(message.seeds)):
                self.peer.credit(req_id, 10_000, choice)
        run_until_idle(self.scheduler, self.worker, self.peer)
        assert self.scheduler.num_live() == 0 and self.scheduler.memory.pool.num_used == 0
        for req_id, message in self.asked.items():
            if req_id in self.cancelled:
                continue
            for choice, seed in enumerate(message.seeds):
                if "is not tried again" in self.peer.finishes[req_id, choice].error:  # workers died in its steps alone
                    continue
                assert self.peer.held[req_id, choice] == expected_output(message.prompt_ids, seed, message.params, context=200)
                assert self.peer.finishes[req_id, choice].output_tokens == len(self.peer.held[req_id, choice])


class RecurrentMachine(SchedulerMachine):
    """A model with recurrent state: the worker holds that each state, and each snapshot, is of the very ids it is used for."""

    limits: ClassVar[dict[str, Any]] = {"recurrent": True, "snapshots": 4, "snapshot_every": 16}


TestRecurrentMachine = RecurrentMachine.TestCase
TestRecurrentMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
