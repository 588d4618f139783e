"""The scheduler of one model, driven by values."""

from __future__ import annotations

import pytest
from engine_driver import (
    CLIENT,
    END_ID,
    FakeWorker,
    Peer,
    expected_output,
    generate,
    make_scheduler,
    run_until_idle,
    step,
)

from helexa.errors import RequestError
from helexa.scheduler.scheduler import FINISH_LINGER_S
from ipc.messages import Result, RowError


def test_one_request_is_answered_to_its_end():
    """Prompt, decode steps, an end with its counts, and nothing held afterwards."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    message = generate("a", [5, 6, 7], seeds=[9])
    scheduler.add(CLIENT, message, 0.0)
    run_until_idle(scheduler, worker, peer)
    output = expected_output([5, 6, 7], 9, message.params)
    assert peer.held["a", 0] == output
    finish = peer.finishes["a", 0]
    assert finish.output_tokens == len(output) and finish.prompt_tokens == 3
    assert finish.reason == ("stop" if output[-1] == END_ID else "length")
    assert scheduler.memory.pool.num_used == 0 and scheduler.num_live() == 0


def test_neighbours_do_not_change_a_reply():
    """Ragged prompts and several choices together give each what it gets alone."""
    scheduler, worker = make_scheduler(seats=5), FakeWorker()
    peer = Peer(scheduler)
    messages = [
        generate(f"r{index}", list(range(3, 4 + index * 7)), seeds=[index, index + 50], max_tokens=30) for index in range(7)
    ]
    for message in messages:
        scheduler.add(CLIENT, message, 0.0)
        step(scheduler, worker, peer)  # joins in mid-flight
    run_until_idle(scheduler, worker, peer)
    for message in messages:
        for choice, seed in enumerate(message.seeds):
            assert peer.held[message.req_id, choice] == expected_output(message.prompt_ids, seed, message.params)


def test_a_long_prompt_is_cut_into_chunks_within_the_step_ceiling():
    """No step holds more than `step_tokens`, and a lone prompt uses all of them."""
    scheduler, worker = make_scheduler(step_tokens=16), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("a", [3] * 40), 0.0)
    counts = [sum(step(scheduler, worker, peer).counts) for _ in range(3)]
    assert counts == [16, 16, 8]


def test_prompt_tokens_beside_decoding_streams_are_bounded_by_time():
    """With 4 ms for four decoding rows at 1 ms a row, at most twice that: four prompt tokens join."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    for index in range(4):
        scheduler.add(CLIENT, generate(f"d{index}", [4 + index], ignore_eos=True, max_tokens=100), 0.0)
    step(scheduler, worker, peer)
    scheduler.add(CLIENT, generate("long", [3] * 200), 0.0)
    for _ in range(10):
        plan = step(scheduler, worker, peer)
        prompt_tokens = sum(count for count, carried in zip(plan.counts, plan.carried, strict=True) if carried)
        assert prompt_tokens == 4
        assert len(plan.seats) == 5, "every running stream gets its token in every step"


def test_an_aborted_sequence_has_left_within_one_step():
    """Queued, running and in flight: seats and blocks are free once the step in flight has landed."""
    scheduler, worker = make_scheduler(seats=1), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("running", [3] * 20, ignore_eos=True, max_tokens=100), 0.0)
    scheduler.add(CLIENT, generate("queued", [3] * 20), 0.0)
    step(scheduler, worker, peer)
    peer.abort("queued")
    assert len(scheduler.waiting) == 0
    plan = scheduler.plan_step(0.0)
    peer.abort("running")
    scheduler.check()
    assert scheduler.memory.pool.num_used > 0, "the worker still writes there"
    scheduler.apply_result(worker.run(plan), 0.0)
    scheduler.check()
    assert scheduler.memory.pool.num_used == 0 and scheduler.num_live() == 0
    assert scheduler.counters.abort_release_steps_max <= 1
    assert scheduler.plan_step(0.0) is None


def test_a_stop_counts_up_to_the_token_that_completed_it():
    """The engine ran ahead of the client's stop string; the end counts what the client keeps."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("a", [3, 4], ignore_eos=True, max_tokens=50), 0.0)
    for _ in range(10):
        step(scheduler, worker, peer)
    peer.abort("a", reason="stop", keep=4)
    peer.receive()
    assert peer.finishes["a", 0].reason == "stop" and peer.finishes["a", 0].output_tokens == 4


def test_out_of_credit_a_sequence_waits_and_others_go_on():
    """A stalled reader's stream keeps its blocks and makes no steps; a live one gets one token a step."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("stalled", [3, 4], credit=3, ignore_eos=True, max_tokens=30), 0.0)
    scheduler.add(CLIENT, generate("live", [5, 6], ignore_eos=True, max_tokens=30), 0.0)
    for expected in range(1, 20):
        step(scheduler, worker, peer)
        assert len(peer.held["live", 0]) == expected
    assert len(peer.held["stalled", 0]) == 3
    peer.credit("stalled", 30)
    run_until_idle(scheduler, worker, peer)
    message = generate("stalled", [3, 4], ignore_eos=True, max_tokens=30)
    assert peer.held["stalled", 0] == expected_output([3, 4], 0, message.params)


def test_a_reader_that_stays_away_too_long_is_ended():
    """After `slow_client_s` the stream ends with what was sent, and its memory is free."""
    scheduler, worker = make_scheduler(slow_client_s=5.0), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("a", [3, 4], credit=2, ignore_eos=True), 0.0)
    for now in (0.0, 1.0, 2.0):
        step(scheduler, worker, peer, now)
    assert scheduler.next_deadline() is not None
    scheduler.expire(6.9)
    assert scheduler.num_live() == 1
    scheduler.expire(7.0)
    peer.receive()
    assert peer.finishes["a", 0].reason == "abort" and peer.finishes["a", 0].output_tokens == 2
    assert scheduler.memory.pool.num_used == 0


def test_the_queue_is_bounded_and_says_when_to_come_back():
    """Beyond the seats and the queue's depth a request is refused; a resubmitted one never is."""
    scheduler = make_scheduler(seats=2, queue_depth=1)
    for index in range(3):
        scheduler.add(CLIENT, generate(f"r{index}", [3]), 0.0)
    with pytest.raises(RequestError) as caught:
        scheduler.add(CLIENT, generate("full", [3]), 0.0)
    assert caught.value.code == "queue_full" and caught.value.status == 503 and caught.value.retry_after
    resumed = generate("resumed", [3])
    resumed.resumed = True
    scheduler.add(CLIENT, resumed, 0.0)


def test_a_request_that_waits_too_long_is_given_up():
    """`queue_wait_s` after its arrival, with 503; a seated one never is."""
    scheduler, worker = make_scheduler(seats=1, queue_wait_s=30.0), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("first", [3], ignore_eos=True, max_tokens=100), 0.0)
    scheduler.add(CLIENT, generate("second", [3]), 1.0)
    step(scheduler, worker, peer, 1.0)
    assert scheduler.expire(30.9) == []
    given_up = scheduler.expire(31.0)
    assert [item.req_id for item in given_up] == ["second"] and given_up[0].error.code == "queue_timeout"
    assert scheduler.num_live() == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (generate("a", []), "empty_prompt"),
        (generate("a", [3] * 500, max_tokens=20), "context_length_exceeded"),
        (generate("a", [3] * 300, max_tokens=200), "context_length_exceeded"),
        (generate("a", [50]), "invalid_value"),
        (generate("a", [3], stop_token_ids=[50]), "invalid_value"),
        (generate("a", [3], logit_bias={50: 1.0}), "invalid_value"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(message, code):
    """400, before any device work: too long, too large for the memory, ids outside the vocabulary."""
    scheduler = make_scheduler(blocks=20)
    with pytest.raises(RequestError) as caught:
        scheduler.add(CLIENT, message, 0.0)
    assert caught.value.code == code and caught.value.status == 400
    assert scheduler.num_live() == 0


def test_generate_is_idempotent_by_its_id():
    """Asked again, the scheduler sends from what the client says it holds, ends included, and computes nothing twice."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    message = generate("a", [3, 4], ignore_eos=True, max_tokens=8)
    scheduler.add(CLIENT, message, 0.0)
    while step(scheduler, worker, peer) is not None:
        peer.finishes.clear()
    steps = scheduler.counters.steps
    # the end was acknowledged, so a new Generate is a new request; before that it is the same one
    scheduler.add(CLIENT, message, 0.0)
    for _ in range(3):
        plan = scheduler.plan_step(0.0)
        scheduler.apply_result(worker.run(plan), 0.0)
        peer.receive(acknowledge=False)
    again = generate("a", [3, 4], ignore_eos=True, max_tokens=8)
    again.output_ids = [peer.held["a", 0][:1]]
    scheduler.add(CLIENT, again, 0.0)
    ((_, start, end, finish),) = scheduler.outbox.due()
    assert (start, end, finish) == (1, 3, None)
    assert scheduler.counters.steps == steps + 3 and scheduler.counters.requests == 2
    with pytest.raises(RequestError, match="another request"):
        scheduler.add(CLIENT, generate("a", [9]), 0.0)


def test_a_client_that_comes_back_after_one_of_its_choices_ended_is_taken_in():
    """A reconnect with one choice acknowledged and one running was refused as another request, and the running one was lost."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    message = generate("a", [3, 4], seeds=[1, 2], ignore_eos=True, max_tokens=9)
    scheduler.add(CLIENT, message, 0.0)
    for _ in range(3):
        step(scheduler, worker, peer)
    peer.abort("a", choice=0, reason="stop", keep=2)
    peer.receive()
    again = generate("a", [3, 4], seeds=[1, 2], ignore_eos=True, max_tokens=9)
    again.output_ids = [peer.held["a", 0], peer.held["a", 1][:1]]
    scheduler.add(CLIENT, again, 0.0)
    run_until_idle(scheduler, worker, peer)
    assert peer.held["a", 1] == expected_output([3, 4], 2, message.params)


def test_an_end_is_sent_again_until_it_is_acknowledged():
    """A client that lost the end asks again and gets it; one that never asks is forgotten after a while."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    message = generate("a", [3, 4], ignore_eos=True, max_tokens=2)
    scheduler.add(CLIENT, message, 0.0)
    for _ in range(2):
        scheduler.apply_result(worker.run(scheduler.plan_step(0.0)), 0.0)
    peer.receive(acknowledge=False)
    assert list(scheduler.outbox.due()) == []
    scheduler.add(CLIENT, message, 0.0)
    ((_, start, end, finish),) = scheduler.outbox.due()
    assert (start, end) == (0, 2) and finish is not None
    scheduler.expire(FINISH_LINGER_S)
    assert list(scheduler.outbox.due()) == []


def test_resubmitted_ids_are_taken_up_where_they_end():
    """What a client holds from a scheduler that died is computed again, and the reply goes on as it would have."""
    prompt, params = [3, 4, 5], generate("x", [3], max_tokens=12, ignore_eos=True).params
    whole = expected_output(prompt, 7, params)
    for held in range(len(whole) + 1):
        scheduler, worker = make_scheduler(), FakeWorker()
        peer = Peer(scheduler)
        peer.held["a", 0] = whole[:held]
        message = generate("a", prompt, seeds=[7], max_tokens=12, ignore_eos=True)
        message.output_ids, message.resumed = [whole[:held]], True
        scheduler.add(CLIENT, message, 0.0)
        run_until_idle(scheduler, worker, peer)
        assert peer.held["a", 0] == whole and peer.finishes["a", 0].output_tokens == len(whole)


def test_a_lost_worker_changes_no_reply():
    """Every running sequence is computed again from its ids by the next worker, in flight or not."""
    for lost_at in range(12):
        scheduler, worker = make_scheduler(), FakeWorker()
        peer = Peer(scheduler)
        messages = [generate(f"r{index}", list(range(3, 10 + 9 * index)), seeds=[index]) for index in range(4)]
        for message in messages:
            scheduler.add(CLIENT, message, 0.0)
        for _ in range(lost_at):
            step(scheduler, worker, peer)
        stale = scheduler.plan_step(0.0) if lost_at % 2 else None
        scheduler.worker_lost(2, 0.0)
        scheduler.check()
        if stale is not None:
            scheduler.apply_result(worker.run(stale), 0.0)  # late, from the dead one: dropped
        run_until_idle(scheduler, FakeWorker(), peer)
        for message in messages:
            assert peer.held[message.req_id, 0] == expected_output(message.prompt_ids, message.seeds[0], message.params)


def test_preemption_under_memory_pressure_changes_no_reply():
    """More growth than blocks: some pause, the youngest gives way when all would, and every reply is whole."""
    scheduler, worker = make_scheduler(blocks=6, seats=6), FakeWorker()
    peer = Peer(scheduler)
    messages = [generate(f"r{index}", [3 + index] * 17, seeds=[index], ignore_eos=True, max_tokens=60) for index in range(6)]
    for message in messages:
        scheduler.add(CLIENT, message, 0.0)
    run_until_idle(scheduler, worker, peer)
    assert scheduler.counters.preemptions > 0 and scheduler.counters.pauses > 0
    for message in messages:
        assert peer.held[message.req_id, 0] == expected_output(message.prompt_ids, message.seeds[0], message.params)


def test_one_rows_failure_ends_that_row_alone():
    """A RowError ends its sequence with an error; the step's other rows are applied."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    scheduler.add(CLIENT, generate("bad", [3]), 0.0)
    scheduler.add(CLIENT, generate("good", [4]), 0.0)
    plan = scheduler.plan_step(0.0)
    result = worker.run(plan)
    scheduler.apply_row_error(RowError(1, plan.step, plan.seats[0], "logits with 3 NaN"), 0.0)
    scheduler.apply_result(result, 0.0)
    scheduler.check()
    peer.receive()
    assert peer.finishes["bad", 0].reason == "error" and "NaN" in peer.finishes["bad", 0].error
    assert len(peer.held["good", 0]) == 1


def test_clients_cannot_touch_each_others_requests():
    """The same id from two clients is two requests; one's abort leaves the other's alone."""
    scheduler, worker = make_scheduler(), FakeWorker()
    mine, other = Peer(scheduler, b"mine"), Peer(scheduler, b"other")
    scheduler.add(b"mine", generate("a", [3]), 0.0)
    scheduler.add(b"other", generate("a", [4]), 0.0)
    other.abort("a")
    run_until_idle(scheduler, worker, mine)
    assert mine.held["a", 0] == expected_output([3], 0, generate("a", [3]).params)
    assert other.held == {}


def test_a_client_that_is_gone_leaves_nothing():
    """Its running, waiting and ended sequences are dropped, another's stay."""
    scheduler, worker = make_scheduler(seats=2), FakeWorker()
    peer = Peer(scheduler, b"stays")
    for index in range(4):
        scheduler.add(b"gone", generate(f"r{index}", [3]), 0.0)
    scheduler.add(b"stays", generate("a", [4]), 0.0)
    plan = scheduler.plan_step(0.0)
    scheduler.drop_client(b"gone", 0.0)
    scheduler.apply_result(worker.run(plan), 0.0)
    scheduler.check()
    assert scheduler.num_live() == 1
    run_until_idle(scheduler, worker, peer)
    assert scheduler.memory.pool.num_used == 0


def test_batching_off_serves_one_at_a_time():
    """With one seat no step ever holds two sequences."""
    scheduler, worker = make_scheduler(seats=1), FakeWorker()
    peer = Peer(scheduler)
    for index in range(3):
        scheduler.add(CLIENT, generate(f"r{index}", [3 + index]), 0.0)
    run_until_idle(scheduler, worker, peer)
    assert all(len(plan.seats) == 1 for plan in worker.plans) and len(peer.finishes) == 3


def test_a_whole_grammar_ends_a_reply_that_ignores_ends():
    """Where only an end may follow, `ignore_eos` had nothing to go on with: the reply ended with an error of its grammar."""
    scheduler = make_scheduler()
    scheduler.add(CLIENT, generate("r", [5, 6], ignore_eos=True, grammar="start: /a/"), 0.0)
    plan = scheduler.plan_step(0.0)
    scheduler.apply_result(Result(plan.incarnation, plan.step, 0, True, plan.seats, [END_ID], {}, {}, 1.0), 0.0)
    peer = Peer(scheduler)
    peer.receive()
    assert (peer.finishes["r", 0].reason, peer.finishes["r", 0].stop_token) == ("stop", END_ID)
