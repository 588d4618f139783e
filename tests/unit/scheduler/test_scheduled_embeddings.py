"""Embeddings through the pure scheduler: what a model that makes them is asked, and what becomes of its answers."""

from __future__ import annotations

import pytest
from engine_driver import CLIENT, generate, make_scheduler

from helexa.scheduler.client_socket import _Batch
from helexa.scheduler.scheduler import Scheduler
from ipc.embedding import is_request, request
from ipc.messages import FinishAck, Plan, Pooled, Result

PROMPT = [5 + place % 40 for place in range(100)]


def answer(scheduler: Scheduler, plan: Plan, values: bytes = b"") -> None:
    """A step of a worker that draws an end for each part which completes its prompt."""
    drawn = [seat for seat, samples in zip(plan.seats, plan.samples, strict=True) if samples]
    for seat in drawn if values else []:
        scheduler.apply_pooled(Pooled(plan.incarnation, plan.step, seat, values))
    scheduler.apply_result(Result(plan.incarnation, plan.step, 0, True, drawn, [2] * len(drawn), {}, {}, 1.0), 0.0)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_an_embedding_comes_with_the_end(pooling: str) -> None:
    """A prompt in parts; the vector goes out once, with the one token that ends it, and is of the last of two answers to a step."""
    scheduler = make_scheduler()
    scheduler.add(CLIENT, request("e", "m", PROMPT, pooling), 0.0)
    parts = 0
    while (plan := scheduler.plan_step(0.0)) is not None:
        parts += sum(plan.counts)
        scheduler.apply_pooled(Pooled(plan.incarnation, plan.step + 1, plan.seats[0], b"another step's"))
        scheduler.apply_pooled(Pooled(plan.incarnation + 1, plan.step, plan.seats[0], b"another incarnation's"))
        answer(scheduler, plan, b"vector")
    assert parts == len(PROMPT)
    (due,) = scheduler.outbox.due()
    batch = _Batch(1)
    batch.add(due)
    assert batch.deltas.pooled == {0: b"vector"} and batch.deltas.finishes[0].output_tokens == 1
    sequence, _, end, finish = due
    scheduler.outbox.sent(sequence, end, finish)
    scheduler.acknowledge(CLIENT, FinishAck("e", 0))
    scheduler.check()


def test_a_mean_takes_nothing_out_of_the_prefix_cache() -> None:
    """It needs every row of the prompt; the last row alone does not."""
    for pooling, cached in (("mean", 0), ("last", 96)):
        scheduler = make_scheduler()
        for name in ("first", "second"):
            scheduler.add(CLIENT, request(name, "m", PROMPT, pooling), 0.0)
            while (plan := scheduler.plan_step(0.0)) is not None:
                answer(scheduler, plan, b"v")
            for sequence, _, end, finish in list(scheduler.outbox.due()):
                scheduler.outbox.sent(sequence, end, finish)
                scheduler.acknowledge(CLIENT, FinishAck(name, 0))
        assert finish is not None and finish.cached_tokens == cached


def test_what_such_a_model_may_be_asked() -> None:
    """One token of one choice; a mean in the words of a scored prompt, a last row not."""
    for pooling, other in (("mean", "last"), ("last", "mean")):
        assert is_request(request("e", "m", PROMPT, pooling), pooling)
        assert not is_request(request("e", "m", PROMPT, other), pooling)
    assert not is_request(generate("g", PROMPT), "last")
    assert not is_request(generate("g", PROMPT, seeds=[1, 2], max_tokens=1), "last")
