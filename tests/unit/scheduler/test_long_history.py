"""A sequence whose cached prefix has tens of thousands of tokens takes its seat."""

from __future__ import annotations

import socket
import threading

import numpy as np
from engine_driver import CLIENT, VOCAB, generate, make_scheduler

from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.scheduler import Scheduler
from ipc.codec import MAX_TO_WORKER_BYTES, MAX_WORKER_BYTES, decode_to_worker, encode
from ipc.messages import FinishAck, Plan, Result
from ipc.sockets import Link
from workers.seats import Seats

PROMPT = [index % VOCAB for index in range(60_000)]


def through_a_link(plan: Plan) -> Plan:
    """The plan as a worker gets it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender, receiver = Link(ours, decode_to_worker, MAX_TO_WORKER_BYTES), Link(theirs, decode_to_worker)
    thread = threading.Thread(target=sender.send, args=(plan,))
    thread.start()
    received = receiver.receive()
    thread.join()
    sender.close()
    receiver.close()
    assert isinstance(received, Plan)
    return received


def run(scheduler: Scheduler, seats: Seats) -> list[Plan]:
    """Steps until nothing is left; the worker draws token 3 each time. Returns the plans, as they arrived."""
    plans: list[Plan] = []
    while (plan := scheduler.plan_step(0.0)) is not None:
        plan = through_a_link(plan)
        seats.apply(plan)
        seats.feed(plan)
        drawn = [seat for seat, samples in zip(plan.seats, plan.samples, strict=True) if samples]
        for seat in drawn:
            seats[seat].ids.append(3)
        scheduler.apply_result(Result(plan.incarnation, plan.step, 0, True, drawn, [3] * len(drawn), {}, {}, 1.0), 0.0)
        for sequence, _, end, finish in scheduler.outbox.due():
            scheduler.outbox.sent(sequence, end, finish)
            if finish is not None:
                scheduler.acknowledge(CLIENT, FinishAck(sequence.request.req_id, 0))
        plans.append(plan)
    return plans


def test_a_history_of_sixty_thousand_tokens():
    """Asked again, a prompt of 60,000 tokens comes out of the prefix cache: the worker gets all of its ids and blocks."""
    blocks = 2 * (len(PROMPT) // BLOCK_SIZE + 10)
    scheduler = make_scheduler(
        context=2**16, blocks=blocks, cached_blocks=blocks, step_tokens=4096, queue_tokens=2**17, reserve_tokens=16
    )
    seats = Seats(8, blocks, 2**16 // BLOCK_SIZE)
    scheduler.add(CLIENT, generate("first", PROMPT, max_tokens=2), 0.0)
    run(scheduler, seats)
    scheduler.add(CLIENT, generate("second", PROMPT, max_tokens=2), 0.0)
    first, *_ = run(scheduler, seats)
    (join,) = first.joins
    history = np.frombuffer(join.history, "<i4").tolist()
    assert len(encode(first)) > MAX_WORKER_BYTES
    assert history == PROMPT[: len(history)] and len(history) >= len(PROMPT) - BLOCK_SIZE
    assert first.starts == [len(history)] and first.counts == [len(PROMPT) - len(history)]
    assert seats[join.seat].ids[: len(PROMPT)] == PROMPT
    assert len(first.blocks) == -(-len(PROMPT) // BLOCK_SIZE)
