"""Who is loaded for a request, and who makes room for it: the pure decision, then engines that follow it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from engine_driver import CLIENT, generate
from hypothesis import given
from hypothesis import strategies as st

from helexa.config_tables import Admission, Config
from helexa.errors import RequestError
from helexa.scheduler.engine import Engine
from helexa.scheduler.residency import GRACE_S, RETRY_S, Residency, Resident, Room, make_room
from helexa.scheduler.roster import Roster
from ipc.leash_messages import LoadModel, ModelLost, ServeModel, UnloadModel
from ipc.messages import Abort, Loaded, Ready

MIB = 2**20
OLD, NEW, BUSY = Resident(1, 40, 10.0), Resident(2, 40, 20.0), Resident(3, 40, math.inf)


@pytest.mark.parametrize(
    ("need", "limit", "residents", "expected"),
    [
        (50, 100, [], Room(load=True)),
        (60, 100, [OLD], Room(load=True)),
        (61, 100, [OLD], Room(leave=frozenset({1}))),
        (30, 100, [NEW, OLD], Room(leave=frozenset({1}))),  # the one that was asked for least recently, and no more than needed
        (90, 120, [BUSY, NEW], Room(leave=frozenset({2, 3}))),  # one that is busy goes last, when it is not any more
        (50, 120, [BUSY, NEW], Room(leave=frozenset({2}))),
        (60, 120, [replace(NEW, leaving=True), OLD], Room(leave=frozenset({2}))),  # who began to leave goes on with it
        (60, 100, [replace(OLD, going=True)], Room(load=True)),
        (61, 100, [replace(OLD, going=True), NEW], Room(leave=frozenset({2}))),
        (90, 120, [replace(OLD, going=True)], Room()),  # what it needs is on its way
        (90, 120, [replace(OLD, in_use=True)], Room()),  # it may leave soon
    ],
)
def test_who_makes_room(need, limit, residents, expected):
    """Loaded at once where it fits, else the least of others leaves, the longest unused first."""
    assert make_room(need, limit, residents) == expected


def test_what_no_eviction_helps_is_said():
    """More than the limit, or than pinned models leave of it: at once, with the numbers and the remedy."""
    assert "100 MiB at least; the memory limit is 90 MiB. Raise" in make_room(100 * MIB, 90 * MIB, []).error
    pinned = replace(OLD, bytes=40 * MIB, pinned=True)
    error = make_room(60 * MIB, 90 * MIB, [pinned, replace(NEW, bytes=10 * MIB)]).error
    assert "of which 40 MiB are taken by models that are pinned" in error
    assert make_room(50 * MIB, 90 * MIB, [pinned, replace(NEW, bytes=10 * MIB)]) == Room(leave=frozenset({2}))


RESIDENTS = st.lists(
    st.builds(Resident, st.integers(), st.integers(1, 60), st.floats(0, 9), *[st.booleans()] * 4),
    max_size=6,
    unique_by=lambda model: model.instance,
)


@given(st.integers(0, 200), st.integers(0, 200), RESIDENTS)
def test_nobody_leaves_in_vain(need, limit, residents):
    """Who is chosen is neither pinned nor in use nor gone already, and with those who go makes the room; without them there is none."""
    room = make_room(need, limit, residents)
    free = limit - sum(model.bytes for model in residents)
    chosen = [model for model in residents if model.instance in room.leave]
    assert room.load == (free >= need)
    assert not any(model.pinned or model.in_use or model.going for model in chosen)
    if room.load or room.error:
        assert not chosen
    if room.error:
        assert free + sum(model.bytes for model in residents if model.going or not model.pinned) < need
    if room.load or room.error:
        return
    others = [model for model in residents if not (model.pinned or model.in_use or model.going)]
    soon = free + sum(model.bytes for model in residents if model.going)
    made = soon + sum(model.bytes for model in chosen)
    if made >= need:
        assert all(made - model.bytes < need for model in chosen)
    else:
        assert len(chosen) == len(others)  # and then some that are in use


LOADED: dict[str, Any] = {
    "free_bytes": 64 * 1024 * 100, "memory_note": "a test", "weight_bytes": 7 * MIB, "bytes_per_block": 1024, "context": 512,
    "vocab": 50, "eos_ids": [2], "prices": [(1, 1.0), (64, 64.0)], "logit_row_ms": 0.0, "decode_position_ms": 0.0,
    "prompt_position_ms": 0.0, "ops": "o", "threads_note": "", "remedy": "", "fingerprint": "f", "load_seconds": 0.0,
}  # fmt: skip
LIMIT = 20 * MIB


class Models:
    """`a` is in memory, `b` is parked; each takes 9 MiB or more of 20: room for both, or at `LIMIT - 5 MiB` for one."""

    def __init__(self, **served: Any) -> None:
        self.roster = Roster()
        self.residency = Residency(self.roster)
        config = replace(Config(), admission=Admission(queue_wait_s=30.0))
        for number, name in enumerate("ab", 1):
            given = {"listed": True, "need_bytes": 9 * MIB, "parked": name == "b", "on_request": name == "b", **served}
            self.roster.add(Engine(ServeModel(name, "file:x", {"gguf": "x"}, instance=number, **given), config, 1, 0))
        self.a, self.b = self.roster
        self.load(self.a, 0.0)

    def load(self, engine: Engine, now: float) -> None:
        engine.on_register()
        engine.on_message(Loaded(**LOADED), now)
        engine.on_message(Ready(0), now)
        assert engine.state == "ready"

    def review(self, now: float, limit: int = LIMIT) -> list[object]:
        return self.residency.review(limit, now) if self.residency.has_work else []


def ask(engine: Engine, req_id: str, now: float, resumed: bool = False) -> None:
    message = generate(req_id, [5, 6, 7])
    message.resumed = resumed
    engine.handle(CLIENT, message, now)


def test_where_there_is_room_it_is_loaded_at_once():
    """What is asked meanwhile waits, and runs when it is there; nobody else is touched."""
    models = Models()
    assert models.review(1.0) == []
    ask(models.b, "one", 1.0)
    assert models.b.num_held == 1 and models.b.state == "unloaded"
    assert models.review(1.0) == [LoadModel(2)]
    assert models.b.state == "loading" and models.review(1.1) == []
    ask(models.b, "two", 1.1)
    models.load(models.b, 2.0)
    assert models.b.num_held == 0 and models.b.scheduler.num_live() == 2
    assert models.a.state == "ready"


def test_the_other_leaves_first_and_keeps_what_is_new():
    """Its running request ends, what comes for it waits; then its worker ends, then the other is loaded, and it comes back after."""
    models, limit = Models(), LIMIT - 5 * MIB
    ask(models.a, "running", 0.5)
    models.b.want(1.0)
    assert models.review(1.0, limit) == [] and models.a.presence.leaving
    ask(models.a, "later", 1.5)
    assert models.a.num_held == 1 and models.a.scheduler.num_live() == 1
    models.a.handle(CLIENT, Abort("running", 0, "cancel"), 2.0)
    models.a.drop_client(b"nobody", 2.0)
    models.a.scheduler.drop_client(CLIENT, 2.0)
    assert models.review(2.0, limit) == [UnloadModel(1)]
    assert models.a.state == "unloaded" and models.a.num_held == 1
    assert models.review(2.1, limit) == []  # its worker has not ended yet
    models.a.park(3.0)
    assert models.review(3.0, limit) == [LoadModel(2)]  # `b` was asked for first
    models.load(models.b, 4.0)
    assert models.review(4.0, limit) == []  # who asked for `b` may not have heard of it yet
    assert models.residency.next_deadline() == 4.0 + GRACE_S
    assert models.review(4.0 + GRACE_S, limit) == [UnloadModel(2)]
    models.b.park(7.0)
    assert models.review(7.0, limit) == [LoadModel(1)]
    models.load(models.a, 8.0)
    assert models.a.num_held == 0 and models.a.counters.requests == 2 and models.a.counters.loads == 2


def test_who_has_served_may_leave_at_once():
    """The time for which a model is left alone ends with its first request."""
    models, limit = Models(), LIMIT - 5 * MIB
    models.b.want(1.0)
    assert models.review(1.0, limit) == [UnloadModel(1)]
    models.a.park(1.0)
    models.review(1.0, limit)
    models.load(models.b, 2.0)
    ask(models.b, "one", 2.1)
    models.b.scheduler.drop_client(CLIENT, 2.2)
    models.a.want(2.2)
    assert models.review(2.2, limit) == [UnloadModel(2)]


def test_a_wish_that_nobody_has_any_more_is_forgotten():
    """After admission.queue_wait_s without a request: the one that was to leave takes requests again."""
    models, limit = Models(), LIMIT - 5 * MIB
    ask(models.a, "running", 0.5)
    models.b.want(1.0)
    models.review(1.0, limit)
    ask(models.a, "later", 1.5)
    assert models.residency.next_deadline() == 31.0
    models.review(31.0, limit)
    assert not models.a.presence.leaving and models.a.num_held == 0 and models.a.scheduler.num_live() == 2
    assert not models.residency.has_work


def test_what_can_never_fit_is_refused_and_may_be_asked_for_again_later():
    """The supervisor is told; those who wait are refused with the reason; after a while it is tried again."""
    models, limit = Models(pinned=True), LIMIT - 5 * MIB
    ask(models.b, "one", 1.0)
    (word,) = models.review(1.0, limit)
    assert isinstance(word, ModelLost) and word.instance == 2 and "pinned" in word.error
    assert [given_up.error.code for given_up in models.b.take_refusals()] == ["model_failed"]
    models.b.park(1.0)
    with pytest.raises(RequestError, match="pinned"):
        ask(models.b, "two", 1.5)
    assert models.residency.next_deadline() == 1.0 + RETRY_S
    assert models.review(1.0 + RETRY_S) == [] and models.b.state == "unloaded" and "pinned" in models.b.error
    ask(models.b, "three", 12.0)
    assert models.review(12.0) == [LoadModel(2)] and models.b.error == ""


def test_an_operator_may_send_it_away():
    """Nobody needs its room; it leaves once its request has ended, and stays away until somebody asks."""
    models = Models()
    ask(models.a, "running", 0.5)
    models.a.presence.leave(dismissed=True)
    assert models.review(1.0) == [] and models.a.presence.leaving
    models.a.scheduler.drop_client(CLIENT, 2.0)
    assert models.review(2.0) == [UnloadModel(1)]
    models.a.park(2.5)
    assert models.review(3.0) == []
    ask(models.a, "again", 4.0)
    assert models.review(4.0) == [LoadModel(1)]


def test_what_a_lost_scheduler_was_asked_is_asked_of_the_next():
    """A request that is resubmitted to a parked model has it loaded."""
    models = Models()
    ask(models.b, "one", 1.0, resumed=True)
    assert models.review(1.0) == [LoadModel(2)]


def test_the_queue_for_a_model_is_bounded():
    """As any other: by admission.queue_depth, and by admission.queue_wait_s."""
    models = Models()
    models.b.configure(replace(models.b.config, admission=Admission(queue_depth=2, queue_wait_s=5.0)))
    for number in range(2):
        ask(models.b, f"{number}", 1.0)
    with pytest.raises(RequestError) as caught:
        ask(models.b, "2", 1.0)
    assert caught.value.code == "queue_full"
    assert [given_up.error.code for given_up in models.b.expire(6.0)] == ["queue_timeout"] * 2
