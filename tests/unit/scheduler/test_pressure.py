"""Prefix cache, memory, priority, fairness and lone streams: what the scheduler does when there is not enough for all."""

from __future__ import annotations

import pytest
from engine_driver import CLIENT, FakeWorker, Peer, expected_output, generate, make_scheduler, run_until_idle, step

from helexa.errors import RequestError


def parts(worker: FakeWorker, seat_of: str | None = None) -> list[int]:
    """Tokens computed in each step."""
    return [sum(plan.counts) for plan in worker.plans]


def test_a_shared_prefix_is_computed_once():
    """The second request computes only what differs, its usage says so, and its reply is the cold one's."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    system = [3 + index % 40 for index in range(50)]
    first, second = generate("first", [*system, 9], seeds=[1]), generate("second", [*system, 8, 7], seeds=[2])
    scheduler.add(CLIENT, first, 0.0)
    run_until_idle(scheduler, worker, peer)
    worker.plans.clear()
    scheduler.add(CLIENT, second, 0.0)
    run_until_idle(scheduler, worker, peer)
    assert worker.plans[0].counts == [52 - 48] and worker.plans[0].starts == [48]
    assert peer.finishes["second", 0].cached_tokens == 48 == scheduler.counters.cached_tokens
    assert peer.held["second", 0] == expected_output(second.prompt_ids, 2, second.params)


def test_a_whole_prompt_that_is_cached_still_computes_its_last_token():
    """A prompt of exactly three blocks, asked twice: two are taken, since the last position's logits are wanted."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    for name in ("first", "second"):
        scheduler.add(CLIENT, generate(name, [5] * 48), 0.0)
        run_until_idle(scheduler, worker, peer)
    assert peer.finishes["second", 0].cached_tokens == 32
    assert peer.held["first", 0] == peer.held["second", 0]


def test_a_conversation_goes_on_from_its_cached_reply():
    """Blocks that hold output are prefixes too: the next turn computes only what is new."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("turn 1", [5] * 20, ignore_eos=True, max_tokens=30), 0.0)
    run_until_idle(scheduler, worker, peer)
    scheduler.add(CLIENT, generate("turn 2", [5] * 20 + peer.held["turn 1", 0] + [9]), 0.0)
    run_until_idle(scheduler, worker, peer)
    assert peer.finishes["turn 2", 0].cached_tokens == 48


@pytest.mark.parametrize("other", [{"key": "b"}, {"cache_salt": "s"}], ids=["another key", "another salt"])
def test_cached_prefixes_are_not_shared_across_scopes(other):
    """One key cannot find out by timing what another has asked."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    for name, scope in (("first", {"key": "a"}), ("second", other), ("third", {"key": "a"})):
        message = generate(name, [5] * 40)
        for field, value in scope.items():
            setattr(message, field, value)
        scheduler.add(CLIENT, message, 0.0)
        run_until_idle(scheduler, worker, peer)
    assert peer.finishes["second", 0].cached_tokens == 0 and peer.finishes["third", 0].cached_tokens == 32


def test_the_cache_is_bounded_and_gives_way():
    """No more blocks than its limit; the longest unused go first, the end of a chain before its beginning."""
    scheduler, worker = make_scheduler(cached_blocks=4), FakeWorker()
    peer = Peer(scheduler)
    for index in range(3):
        scheduler.add(CLIENT, generate(f"r{index}", [5 + index] * 33, max_tokens=1), 0.0)
        run_until_idle(scheduler, worker, peer)
        assert scheduler.memory.pool.num_cached <= 4
    for index, cached in ((0, 0), (2, 32)):
        scheduler.add(CLIENT, generate(f"again {index}", [5 + index] * 33, max_tokens=1), 0.0)
        run_until_idle(scheduler, worker, peer)
        assert peer.finishes[f"again {index}", 0].cached_tokens == cached


def test_a_lost_worker_takes_the_cache_along():
    """The next worker's blocks hold nothing: no prefix is taken from before."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("first", [5] * 40), 0.0)
    run_until_idle(scheduler, worker, peer)
    scheduler.worker_lost(2, 0.0)
    scheduler.check()
    assert scheduler.memory.pool.num_cached == 0
    scheduler.add(CLIENT, generate("second", [5] * 40), 0.0)
    run_until_idle(scheduler, FakeWorker(), peer)
    assert peer.finishes["second", 0].cached_tokens == 0
    assert peer.held["second", 0] == peer.held["first", 0]


def test_a_preempted_sequence_takes_its_own_blocks_back():
    """What it had computed may still be cached when it returns; `cached_tokens` counts only what others had computed."""
    scheduler, worker = make_scheduler(seats=1), FakeWorker()
    peer = Peer(scheduler)
    background = generate("background", [5] * 40, ignore_eos=True, max_tokens=20)
    background.priority = "background"
    scheduler.add(CLIENT, background, 0.0)
    for _ in range(3):
        step(scheduler, worker, peer)
    scheduler.add(CLIENT, generate("urgent", [9] * 5, max_tokens=2, ignore_eos=True), 0.0)
    worker.plans.clear()
    run_until_idle(scheduler, worker, peer)
    back = next(plan for plan in worker.plans if plan.joins and plan.joins[0].params.max_tokens == 20)
    assert back.starts == [32]
    assert peer.finishes["background", 0].cached_tokens == 0
    assert peer.held["background", 0] == expected_output(background.prompt_ids, 0, background.params)


def test_interactive_goes_before_background():
    """A background stream yields its seat at once and continues later; among waiting ones interactive is next."""
    scheduler, worker = make_scheduler(seats=1), FakeWorker()
    peer = Peer(scheduler)
    messages = [generate(f"b{index}", [4 + index] * 6, ignore_eos=True, max_tokens=8) for index in range(2)]
    for message in messages:
        message.priority = "background"
        scheduler.add(CLIENT, message, 0.0)
    step(scheduler, worker, peer)
    urgent = generate("urgent", [9] * 5, max_tokens=4, ignore_eos=True)
    scheduler.add(CLIENT, urgent, 0.0)
    for _ in range(4):
        step(scheduler, worker, peer)
    assert len(peer.held["urgent", 0]) == 4, "it had the seat from its first step on"
    run_until_idle(scheduler, worker, peer)
    for message in [*messages, urgent]:
        assert peer.held[message.req_id, 0] == expected_output(message.prompt_ids, 0, message.params)
    assert scheduler.counters.preemptions == 1


def test_a_flood_of_one_key_does_not_starve_another():
    """Two keys that always have requests waiting share the tokens evenly, however many each has sent."""
    scheduler, worker = make_scheduler(seats=4, queue_depth=400, cached_blocks=0), FakeWorker()
    peer = Peer(scheduler)
    for index in range(150):
        message = generate(f"flood{index}", [3 + index % 40] * 10, ignore_eos=True, max_tokens=10)
        message.key = "flood"
        scheduler.add(CLIENT, message, 0.0)
    for index in range(40):
        message = generate(f"calm{index}", [3 + index % 40] * 10, ignore_eos=True, max_tokens=10)
        message.key = "calm"
        scheduler.add(CLIENT, message, 0.0)
    while any(key.startswith("calm") for key, _ in [(s.request.req_id, 0) for s in scheduler.waiting]):
        step(scheduler, worker, peer)
    tokens = {
        name: sum(len(ids) for (req_id, _), ids in peer.held.items() if req_id.startswith(name)) for name in ("flood", "calm")
    }
    assert abs(tokens["calm"] - tokens["flood"]) <= 0.1 * tokens["calm"]


def test_a_key_that_comes_late_has_no_saved_up_claim():
    """After a long time alone with the server, the other key does not have to wait until a newcomer has caught up."""
    scheduler, worker = make_scheduler(seats=1, queue_depth=400), FakeWorker()
    peer = Peer(scheduler)

    def ask(key: str, index: int) -> None:
        message = generate(f"{key}{index}", [3 + index % 40] * 10, ignore_eos=True, max_tokens=5)
        message.key = key
        scheduler.add(CLIENT, message, 0.0)

    for index in range(20):
        ask("old", index)
        run_until_idle(scheduler, worker, peer)
    for index in range(20, 26):
        ask("old", index)
        ask("new", index)
    order = []
    while step(scheduler, worker, peer) is not None:
        order += [req_id for req_id, _ in peer.finishes if req_id not in order]
    late = [name for name in order if int(name[3:]) >= 20]
    assert [name[:3] for name in late[:4]].count("old") == 2


def test_one_key_cannot_fill_the_queue():
    """A named key is told 429 at half the queue, another is still taken; without keys the whole queue is one's own."""
    scheduler = make_scheduler(seats=1, queue_depth=9)
    for index in range(5):
        message = generate(f"r{index}", [3])
        message.key = "a"
        scheduler.add(CLIENT, message, 0.0)
    message = generate("more", [3])
    message.key = "a"
    with pytest.raises(RequestError) as caught:
        scheduler.add(CLIENT, message, 0.0)
    assert (caught.value.code, caught.value.status) == ("too_many_requests", 429) and caught.value.retry_after
    message.key = "b"
    scheduler.add(CLIENT, message, 0.0)


def test_the_queue_is_bounded_in_tokens_too():
    """Few but huge prompts fill it; a lone one is always taken."""
    scheduler = make_scheduler(queue_tokens=300)
    scheduler.add(CLIENT, generate("first", [3] * 400), 0.0)
    with pytest.raises(RequestError, match="queue_tokens"):
        scheduler.add(CLIENT, generate("second", [3] * 10), 0.0)


def test_a_lone_stream_is_run_by_the_worker_itself():
    """Fewer plans than steps, within what is reserved and credited; the reply is the same."""
    scheduler, worker = make_scheduler(repeat_steps=8), FakeWorker()
    peer = Peer(scheduler)
    message = generate("a", [3, 4, 5], ignore_eos=True, max_tokens=50, credit=30)
    scheduler.add(CLIENT, message, 0.0)
    run_until_idle(scheduler, worker, peer)
    assert len(peer.held["a", 0]) == 30
    peer.credit("a", 100)
    run_until_idle(scheduler, worker, peer)
    assert peer.held["a", 0] == expected_output([3, 4, 5], 0, message.params)
    counters = scheduler.counters
    assert counters.steps == 50 and counters.handoffs <= 1 + -(-29 // 8) + -(-20 // 8)


def test_a_newcomer_calls_the_worker_back():
    """In mid-run somebody arrives: the worker is called back once, and both run in the next step."""
    scheduler, worker = make_scheduler(repeat_steps=8), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("a", [3, 4, 5], ignore_eos=True, max_tokens=50), 0.0)
    step(scheduler, worker, peer)
    plan = scheduler.plan_step(0.0)
    assert plan.repeat == 8 and not scheduler.wants_worker_back()
    results = worker.run_all(plan, most=3)
    scheduler.apply_result(results[0], 0.0)
    scheduler.add(CLIENT, generate("b", [5, 6]), 0.0)
    assert scheduler.wants_worker_back() and not scheduler.wants_worker_back()
    for result in results[1:]:
        scheduler.apply_result(result, 0.0)
        scheduler.check()
    assert len(scheduler.plan_step(0.0).seats) == 2


def test_streams_that_all_decode_are_run_by_the_worker_itself():
    """Several steps a plan, none of them past the first end or the least credit; each reply is what it is alone."""
    scheduler, worker = make_scheduler(repeat_steps=8), FakeWorker()
    peer = Peer(scheduler)
    messages = [generate(f"r{i}", [3 + i, 5], ignore_eos=True, max_tokens=20) for i in range(3)]
    for message in messages:
        scheduler.add(CLIENT, message, 0.0)
    run_until_idle(scheduler, worker, peer)
    for message in messages:
        assert peer.held[message.req_id, 0] == expected_output(message.prompt_ids, 0, message.params)
    assert scheduler.counters.steps == 20 and scheduler.counters.handoffs <= 1 + -(-19 // 8)


def test_a_full_house_is_not_called_back_for_who_cannot_be_seated():
    """Nobody would sit sooner for it; a seat that comes free ends the run."""
    scheduler, worker = make_scheduler(repeat_steps=8, seats=1), FakeWorker()
    scheduler.add(CLIENT, generate("a", [3, 4], ignore_eos=True, max_tokens=4), 0.0)
    scheduler.apply_result(worker.run(scheduler.plan_step(0.0)), 0.0)
    scheduler.add(CLIENT, generate("b", [5, 6]), 0.0)
    plan = scheduler.plan_step(0.0)
    assert plan.repeat == 3 and not scheduler.wants_worker_back()
    for result in worker.run_all(plan):
        scheduler.apply_result(result, 0.0)
    assert [join.seat for join in scheduler.plan_step(0.0).joins] == [0]


def test_a_sequence_whose_whole_reply_is_reserved_never_pauses():
    """Seated first with all it may need, it gets a token every step while others pause and are preempted."""
    scheduler, worker = make_scheduler(blocks=10, reserve_tokens=48), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("whole", [3] * 16, ignore_eos=True, max_tokens=48), 0.0)
    scheduler.add(CLIENT, generate("long", [4] * 16, ignore_eos=True, max_tokens=120), 0.0)
    for expected in range(1, 49):
        step(scheduler, worker, peer)
        assert len(peer.held["whole", 0]) == expected
    run_until_idle(scheduler, worker, peer)
    assert len(peer.held["long", 0]) == 120


def test_stalled_readers_give_way_to_the_queue():
    """Streams out of credit hold all seats: a waiting request takes one, and the stalled one goes on once it is read."""
    scheduler, worker = make_scheduler(seats=2), FakeWorker()
    peer = Peer(scheduler)
    stalled = [generate(f"s{index}", [4 + index] * 5, credit=2, ignore_eos=True, max_tokens=12) for index in range(2)]
    for message in stalled:
        scheduler.add(CLIENT, message, 0.0)
    run_until_idle(scheduler, worker, peer)
    live = generate("live", [9] * 5, ignore_eos=True, max_tokens=12)
    scheduler.add(CLIENT, live, 0.0)
    run_until_idle(scheduler, worker, peer)
    assert len(peer.held["live", 0]) == 12
    for message in stalled:
        peer.credit(message.req_id, 100)
    run_until_idle(scheduler, worker, peer)
    for message in stalled:
        assert peer.held[message.req_id, 0] == expected_output(message.prompt_ids, 0, message.params)


def test_a_thousand_cancels_leave_nothing():
    """Requests cancelled at random points (queued, in a prompt, decoding, in flight): zero blocks are held."""
    import random

    chance = random.Random(5)
    scheduler, worker = make_scheduler(seats=6, queue_depth=2000, cached_blocks=0), FakeWorker()
    peer = Peer(scheduler)
    for index in range(1000):
        scheduler.add(CLIENT, generate(f"r{index}", [3 + index % 40] * chance.randint(1, 40), ignore_eos=True), 0.0)
    open_ids = {f"r{index}" for index in range(1000)}
    while open_ids:
        plan = scheduler.plan_step(0.0)
        for req_id in chance.sample(sorted(open_ids), min(len(open_ids), chance.randint(0, 9))):
            peer.abort(req_id)
            open_ids.discard(req_id)
        scheduler.check()
        for result in worker.run_all(plan) if plan is not None else []:
            scheduler.apply_result(result, 0.0)
        peer.receive()
        open_ids -= {req_id for req_id, _ in peer.finishes}
    scheduler.check()
    assert scheduler.memory.pool.num_used == 0 and scheduler.num_live() == 0
    assert scheduler.counters.abort_release_steps_max <= 1
