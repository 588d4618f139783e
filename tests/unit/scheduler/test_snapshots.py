"""Snapshots of recurrent state: where they are taken, who starts from them, and when they go."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import FakeWorker, Peer, expected_output, generate, make_scheduler, run_until_idle, step

from helexa.scheduler.prefix_cache import Node
from helexa.scheduler.scheduler import Scheduler
from helexa.scheduler.snapshots import Snapshots

PROMPT = [3 + index % 40 for index in range(100)]


def start(**changes: Any) -> tuple[Scheduler, FakeWorker, Peer]:
    values = {"recurrent": True, "snapshots": 6, "snapshot_every": 32, "step_tokens": 256, "cached_blocks": 40, **changes}
    scheduler = make_scheduler(**values)
    return scheduler, FakeWorker(recurrent=True), Peer(scheduler)


def ask(scheduler: Scheduler, name: str, prompt: list[int], **params: Any) -> None:
    scheduler.add(b"client", generate(name, prompt, ignore_eos=True, **{"max_tokens": 3, **params}), 0.0)


def cached(peer: Peer, name: str) -> int:
    return peer.finishes[name, 0].cached_tokens


def test_a_prompt_is_cut_where_snapshots_are_taken() -> None:
    """At every 32 tokens and behind the last block that leaves one to compute, though a step could take 256."""
    scheduler, worker, peer = start()
    ask(scheduler, "a", PROMPT)
    run_until_idle(scheduler, worker, peer)
    assert [plan.counts[0] for plan in worker.plans][:4] == [32, 32, 32, 4]
    assert [len(plan.snapshots) for plan in worker.plans][:4] == [1, 1, 1, 0]
    whole, worker, peer = start()
    ask(whole, "b", PROMPT[:80])  # five blocks: the last snapshot leaves a whole one
    run_until_idle(whole, worker, peer)
    assert [plan.counts[0] for plan in worker.plans][:3] == [32, 32, 16]
    assert [len(plan.snapshots) for plan in worker.plans][:3] == [1, 1, 0]


@pytest.mark.parametrize(
    "prompt,expected",
    [
        (PROMPT, 96),  # the same again
        (PROMPT[:97], 96),
        (PROMPT[:96], 64),  # a token must be left to compute
        ([*PROMPT, 5, 6, 7, *PROMPT], 96),  # it goes on
        ([*PROMPT[:90], 5, 6, 7, 8, 9], 64),  # five blocks are alike, and two of them behind no snapshot
        ([*PROMPT[:31], 1, *PROMPT[32:]], 0),
    ],
)
def test_a_hit_ends_at_a_snapshot(prompt: list[int], expected: int) -> None:
    """And the worker starts from it: the reply is the undisturbed one."""
    scheduler, worker, peer = start()
    ask(scheduler, "a", PROMPT)
    run_until_idle(scheduler, worker, peer)
    ask(scheduler, "b", prompt)
    run_until_idle(scheduler, worker, peer)
    assert cached(peer, "b") == expected
    assert peer.held["b", 0] == expected_output(prompt, 0, generate("x", [1], max_tokens=3, ignore_eos=True).params)
    join = next(plan.joins[0] for plan in reversed(worker.plans) if plan.joins)
    assert (join.snapshot >= 0) == bool(expected) and len(join.history) == 4 * expected


def test_no_slots_no_prefixes() -> None:
    """Blocks without a state behind them are of no use: nothing is found again, nothing is kept, no step is cut."""
    scheduler, worker, peer = start(snapshots=0)
    for name in ("a", "b"):
        ask(scheduler, name, PROMPT)
        run_until_idle(scheduler, worker, peer)
    assert cached(peer, "b") == 0 and scheduler.memory.pool.num_cached == 0
    assert all(not plan.snapshots for plan in worker.plans)
    assert worker.plans[0].counts == [100]


def test_without_a_prefix_cache_no_step_is_cut() -> None:
    """`cached_blocks` 0: nothing could be found again."""
    scheduler, worker, peer = start(cached_blocks=0)
    ask(scheduler, "a", PROMPT)
    run_until_idle(scheduler, worker, peer)
    assert worker.plans[0].counts == [100] and not worker.plans[0].snapshots


def test_the_longest_unused_is_given_up() -> None:
    """Four slots for prompts of three snapshots each: the latest prompt is found, of the first only what is left."""
    scheduler, worker, peer = start(snapshots=4)
    other = [token + 1 for token in PROMPT]
    for name, prompt in (("a", PROMPT), ("b", other), ("c", other), ("d", PROMPT)):
        ask(scheduler, name, prompt)
        run_until_idle(scheduler, worker, peer)
    assert [cached(peer, name) for name in "abcd"] == [0, 0, 96, 96]
    ask(scheduler, "e", PROMPT[:70])
    run_until_idle(scheduler, worker, peer)
    assert cached(peer, "e") == 0  # the last snapshot was kept, those before it were not


def test_snapshots_go_with_their_blocks() -> None:
    """Blocks that are evicted for others take their snapshots along, and a flush takes all."""
    scheduler, worker, peer = start(blocks=10, cached_blocks=10)
    snapshots = scheduler.memory._snapshots
    assert snapshots is not None
    ask(scheduler, "a", PROMPT)
    run_until_idle(scheduler, worker, peer)
    assert len(snapshots) == 3
    ask(scheduler, "b", [token + 1 for token in PROMPT], max_tokens=20)
    run_until_idle(scheduler, worker, peer)
    assert len(snapshots) == 4  # three of b's, and a's first
    scheduler.memory.flush_cache()
    scheduler.check()
    assert len(snapshots) == 0
    ask(scheduler, "c", PROMPT)
    run_until_idle(scheduler, worker, peer)
    assert cached(peer, "c") == 0


def test_a_preempted_sequence_goes_on_from_a_snapshot() -> None:
    """Preempted while it decodes, it is computed again from the last snapshot of its prompt, and answers the same."""
    scheduler, worker, peer = start(seats=1)
    scheduler.add(b"client", _with(generate("low", PROMPT, max_tokens=20, ignore_eos=True), "background"), 0.0)
    for _ in range(6):
        step(scheduler, worker, peer)
    ask(scheduler, "high", [9, 8, 7])
    run_until_idle(scheduler, worker, peer)
    assert scheduler.counters.preemptions == 1
    joins = [join for plan in worker.plans for join in plan.joins]
    assert [len(join.history) // 4 for join in joins] == [0, 0, 96]
    assert peer.held["low", 0] == expected_output(PROMPT, 0, generate("x", [1], max_tokens=20, ignore_eos=True).params)


def _with(message: Any, priority: str) -> Any:
    message.priority = priority
    return message


def test_an_aborted_step_gives_its_slot_back() -> None:
    """A sequence cancelled while its step saves a state leaves no slot behind, once the step is done."""
    scheduler, worker, peer = start()
    snapshots = scheduler.memory._snapshots
    assert snapshots is not None
    ask(scheduler, "a", PROMPT)
    plan = scheduler.plan_step(0.0)
    assert plan is not None and plan.snapshots
    peer.abort("a")
    scheduler.check()
    scheduler.apply_result(worker.run(plan), 0.0)
    scheduler.check()
    assert len(snapshots) == 0 and len(snapshots._free) == snapshots.total


def test_a_lost_worker_takes_all_snapshots_along() -> None:
    """What waits is computed again from position 0."""
    scheduler, worker, peer = start()
    ask(scheduler, "a", PROMPT)
    for _ in range(3):
        step(scheduler, worker, peer)
    scheduler.plan_step(0.0)
    scheduler.worker_lost(2, 0.0)
    scheduler.check()
    worker = FakeWorker(recurrent=True)
    run_until_idle(scheduler, worker, peer)
    assert worker.plans[0].joins[0].snapshot == -1
    assert len(peer.held["a", 0]) == 3


def test_a_slot_is_kept_for_who_is_to_start_from_it() -> None:
    """A pinned slot is not written to, though it is the longest unused."""
    snapshots = Snapshots(2, 16)
    for block in (5, 6):
        slot = snapshots.take()
        assert slot is not None
        snapshots.attach(block, slot)
    pinned = snapshots.pin(5)
    snapshots._of_block.move_to_end(6)
    taken = snapshots.take()
    assert taken is not None and taken != pinned
    assert snapshots.take() is None
    snapshots.unpin(pinned)
    assert snapshots.take() == pinned


def test_positions() -> None:
    """Multiples of `every`, then the last block's end that leaves a token."""
    snapshots = Snapshots(1, 64)
    seen = [snapshots.next_position(200, computed) for computed in (0, 63, 64, 128, 190, 192, 199, 250)]
    assert seen == [64, 64, 128, 192, 192, None, None, None]
    assert [snapshots.next_position(length, 0) for length in (1, 16, 17, 32, 33)] == [None, None, 16, 16, 32]
    root = Node(-1, None, ())
    assert snapshots.usable([Node(1, root, ()), Node(2, root, ())]) == []
