"""Prompts whose log probabilities are asked for: a step has a row of logits a seat, and cached prompts have none."""

from __future__ import annotations

from engine_driver import CLIENT, FakeWorker, Peer, expected_output, generate, make_scheduler, step

from helexa.scheduler.scheduler import Scheduler
from ipc.messages import Plan, PromptLogprobs, TokenLogprobs


def logit_rows(plan: Plan, scheduler: Scheduler, scored: dict[int, int]) -> int:
    """Rows a worker would want logits for: `scored` has the prompt's length of each scored seat."""
    rows = 0
    for seat, start, count, samples in zip(plan.seats, plan.starts, plan.counts, plan.samples, strict=True):
        rows += max(0, min(start + count, scored.get(seat, 0) - 1) - start) + samples
    return rows


def play(scheduler: Scheduler, peer: Peer, scored_prompt: int, worker: FakeWorker | None = None) -> list[Plan]:
    """Runs to the end; seats that join with scored prompts have `scored_prompt` tokens."""
    worker, plans, scored = worker or FakeWorker(), list[Plan](), dict[int, int]()
    while True:
        plan = step(scheduler, worker, peer)
        if plan is None:
            return plans
        plans.append(plan)
        scored |= {join.seat: scored_prompt for join in plan.joins if join.params.prompt_logprobs >= 0}
        assert logit_rows(plan, scheduler, scored) <= scheduler.limits.seats


def test_a_step_never_wants_more_rows_than_seats():
    """Beside others that decode and others that join, and the replies are what they are alone."""
    scheduler = make_scheduler(seats=4)
    peer = Peer(scheduler)
    messages = [generate(f"r{n}", [3 + n] * 30, seeds=[n], prompt_logprobs=0 if n % 2 else -1) for n in range(6)]
    for message in messages:
        scheduler.add(CLIENT, message, 0.0)
    play(scheduler, peer, 30)
    for message in messages:
        assert peer.held[message.req_id, 0] == expected_output(message.prompt_ids, message.seeds[0], message.params)


def test_one_seat_scores_a_token_a_step():
    scheduler = make_scheduler(seats=1)
    scheduler.add(CLIENT, generate("a", [3] * 10, prompt_logprobs=0, max_tokens=1), 0.0)
    plans = play(scheduler, Peer(scheduler), 10)
    assert [plan.counts for plan in plans] == [[1]] * 10


def test_a_scored_prompt_is_not_taken_from_the_cache():
    """The same prompt twice: computed in full when it is scored, cached when it is not."""
    scheduler, worker = make_scheduler(), FakeWorker()
    peer = Peer(scheduler)
    for req_id, best in (("a", -1), ("b", 0), ("c", -1)):
        scheduler.add(CLIENT, generate(req_id, list(range(3, 43)), prompt_logprobs=best, max_tokens=1), 0.0)
        play(scheduler, peer, 40, worker)
    assert [peer.finishes[req_id, 0].cached_tokens for req_id in "abc"] == [0, 0, 32]


def test_log_probabilities_are_kept_by_place():
    """A part's come by their start; after a preemption they come again, and replace what was there."""
    scheduler = make_scheduler()
    scheduler.add(CLIENT, generate("a", [3] * 10, prompt_logprobs=0), 0.0)
    plan = scheduler.plan_step(0.0)
    assert plan is not None
    (sequence,) = scheduler.running
    values = [TokenLogprobs(-float(n), [], []) for n in range(9)]
    for start, part in ((0, values[:4]), (4, values[4:]), (2, values[2:])):
        scheduler.apply_prompt_logprobs(PromptLogprobs(plan.incarnation, plan.step, sequence.seat, start, part))
    assert sequence.prompt_logprobs == values
    scheduler.apply_prompt_logprobs(PromptLogprobs(plan.incarnation + 1, plan.step, sequence.seat, 0, []))
    assert sequence.prompt_logprobs == values


def test_joins_fit_a_datagram():
    """Long grammars join a few at a time."""
    scheduler = make_scheduler()
    for number in range(6):
        scheduler.add(CLIENT, generate(f"r{number}", [3] * 4, grammar="x" * 32_000), 0.0)
    plans = play(scheduler, Peer(scheduler), 0)
    joined = [len(plan.joins) for plan in plans]
    assert sum(joined) == 6 and max(joined) == 3
