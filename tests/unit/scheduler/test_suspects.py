"""Workers that die: what was in their step is suspected, tried alone, and ended or acquitted."""

from __future__ import annotations

from engine_driver import CLIENT, FakeWorker, Peer, expected_output, generate, make_scheduler

from helexa.scheduler import suspects
from helexa.scheduler.scheduler import Scheduler
from ipc.messages import Plan


class Pool:
    """Workers one after the other; each dies of a step that computes the id `poison` for the sequence that brought it."""

    def __init__(self, scheduler: Scheduler, poison: int) -> None:
        self.scheduler, self.poison = scheduler, poison
        self.worker, self.peer = FakeWorker(), Peer(scheduler)
        self.deaths, self.alone = 0, 0

    def run(self) -> None:
        for _ in range(10_000):
            plan = self.scheduler.plan_step(0.0)
            self.scheduler.check()
            if plan is None:
                return
            self.alone += len(plan.seats) == 1
            if self.poison in plan.ids:
                self.die()
            else:
                for result in self.worker.run_all(plan):
                    self.scheduler.apply_result(result, 0.0)
                    self.scheduler.check()
            self.peer.receive()
        raise AssertionError("it goes on for ever")

    def die(self) -> None:
        self.deaths += 1
        self.scheduler.worker_lost(self.deaths + 1, 0.0)
        self.scheduler.check()
        self.worker = FakeWorker()


POISON = 55  # no output has it


def test_the_poisonous_one_of_many_ends_alone():
    """Two deaths in company, one by itself; the fifteen others get what they would have got."""
    scheduler = make_scheduler(seats=16, blocks=256, vocab=60)
    pool = Pool(scheduler, POISON)
    prompts = {f"r{index}": [5 + index] * (3 + index) for index in range(15)}
    for name, prompt in prompts.items():
        scheduler.add(CLIENT, generate(name, prompt, ignore_eos=True), 0.0)
    scheduler.add(CLIENT, generate("poison", [5, POISON, 6]), 0.0)
    pool.run()
    finish = pool.peer.finishes["poison", 0]
    assert finish.reason == "error" and "is not tried again" in finish.error
    assert pool.deaths == 3 and scheduler.counters.poisonous == 1
    for name, prompt in prompts.items():
        assert pool.peer.held[name, 0] == _whole(prompt)
    assert scheduler.num_live() == 0 and scheduler.memory.pool.num_used == 0


def _whole(prompt: list[int]) -> list[int]:
    return expected_output(prompt, 0, generate("x", prompt, ignore_eos=True).params)


def test_a_lone_poison_ends_after_two():
    """No company, no doubt."""
    scheduler = make_scheduler(vocab=60)
    pool = Pool(scheduler, POISON)
    scheduler.add(CLIENT, generate("poison", [POISON] * 3), 0.0)
    pool.run()
    assert pool.deaths == suspects.DEATHS and pool.peer.finishes["poison", 0].reason == "error"


def test_any_number_of_deaths_elsewhere_convicts_nobody():
    """A worker killed again and again, each time a token further on: the stream is whole."""
    scheduler = make_scheduler()
    pool = Pool(scheduler, -1)
    message = generate("r", [7, 8, 9], max_tokens=12, ignore_eos=True)
    scheduler.add(CLIENT, message, 0.0)
    for _ in range(11):
        for _ in range(2):  # the replay, which passes the last death, then a token more
            plan = scheduler.plan_step(0.0)
            assert isinstance(plan, Plan)
            for result in pool.worker.run_all(plan):
                scheduler.apply_result(result, 0.0)
            pool.peer.receive()
            if pool.peer.finishes:
                break
        if scheduler.plan_step(0.0) is None:
            break
        pool.die()
    pool.run()
    assert pool.deaths > suspects.DEATHS and scheduler.counters.poisonous == 0
    assert pool.peer.held["r", 0] == expected_output(message.prompt_ids, 0, message.params)


def test_a_suspect_is_computed_by_itself_until_it_is_past_the_spot():
    """Two deaths in one step of two: then steps of one, each acquitted where it passes, then steps of two again."""
    scheduler = make_scheduler()
    pool = Pool(scheduler, -1)
    for name in ("a", "b"):
        scheduler.add(CLIENT, generate(name, [5, 6, 7], ignore_eos=True, seeds=[ord(name)]), 0.0)
    for _ in range(2):
        plan = scheduler.plan_step(0.0)
        assert len(plan.seats) == 2
        pool.die()
    sizes = []
    for _ in range(4):
        plan = scheduler.plan_step(0.0)
        sizes.append(len(plan.seats))
        for result in pool.worker.run_all(plan):
            scheduler.apply_result(result, 0.0)
    assert sizes == [1, 1, 2, 2]


def test_when_no_worker_will_come_all_ends():
    """Running, waiting and paused sequences alike end with the reason, and nothing is held."""
    scheduler = make_scheduler(seats=2)
    peer, worker = Peer(scheduler), FakeWorker()
    for index in range(5):
        scheduler.add(CLIENT, generate(f"r{index}", [5, 6], credit=1 if index == 0 else 100, ignore_eos=True), 0.0)
    for _ in range(3):
        plan = scheduler.plan_step(0.0)
        scheduler.apply_result(worker.run(plan), 0.0)
    scheduler.plan_step(0.0)
    scheduler.worker_lost(2, 0.0)
    scheduler.fail("gone", 0.0)
    scheduler.check()
    peer.receive()
    assert {finish.error for finish in peer.finishes.values()} == {"gone"} and len(peer.finishes) == 5
    assert scheduler.num_live() == 0 and scheduler.memory.pool.num_used == 0
