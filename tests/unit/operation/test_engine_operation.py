"""An engine that is paused, drained, reconfigured, asked to end a request: with a real scheduler and no worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_driver import CLIENT, generate

from helexa.config_tables import Admission, Cache, Config
from helexa.errors import RequestError
from helexa.scheduler.engine import Engine
from ipc.leash_messages import ServeModel
from ipc.messages import Abort, Generate, Loaded, Ready, Result

LOADED: dict[str, Any] = {
    "free_bytes": 64 * 1024 * 100,
    "memory_note": "a test",
    "weight_bytes": 7,
    "bytes_per_block": 1024,
    "context": 512,
    "vocab": 50,
    "eos_ids": [2],
    "prices": [(1, 1.0), (64, 64.0)],
    "logit_row_ms": 0.0,
    "decode_position_ms": 0.0,
    "prompt_position_ms": 0.0,
    "ops": "o",
    "threads_note": "",
    "remedy": "",
    "fingerprint": "f",
    "load_seconds": 0.0,
}


def ready_engine(config: Config | None = None, **served: object) -> Engine:
    engine = Engine(ServeModel("m", "file:x", {"gguf": "x"}, **served), config or Config(), 1, 0)  # type: ignore[arg-type]
    engine.on_register()
    engine.on_message(Loaded(**LOADED), 0.0)
    engine.on_message(Ready(0), 0.0)
    assert engine.state == "ready" and engine.scheduler is not None
    return engine


def ask(engine: Engine, req_id: str, now: float = 0.0, key: str = "", resumed: bool = False) -> Generate:
    message = generate(req_id, [5, 6, 7])
    message.key, message.resumed = key, resumed
    engine.handle(CLIENT, message, now)
    return message


def test_a_pause_holds_what_is_new_and_nothing_else():
    """What came before and what is resumed goes on; after `resume` the held ones queue in their order, with their cancels."""
    engine = ready_engine()
    ask(engine, "before")
    engine.pause(True, 0.0)
    ask(engine, "held", key="k")
    ask(engine, "cancelled")
    engine.handle(CLIENT, Abort("cancelled", 0, "cancel"), 0.0)
    ask(engine, "before")  # asked again: known
    ask(engine, "resumed", resumed=True)
    assert engine.scheduler.num_live() == 2 and engine.num_held == 2 and engine.num_open_of("k") == 1
    assert engine.plan_step(0.0).joins
    engine.pause(False, 1.0)
    assert engine.num_held == 0 and engine.scheduler.num_live() == 3
    assert engine.open_requests().count("held") == 1 and "cancelled" not in engine.open_requests()


def test_a_held_request_waits_no_longer_than_others():
    """Refused after queue_wait_s, and the engine knows when to look."""
    engine = ready_engine()
    engine.pause(True, 0.0)
    ask(engine, "held", now=5.0)
    wait_s = engine.config.admission.queue_wait_s
    assert engine.next_deadline() == 5.0 + wait_s
    assert engine.expire(5.0 + wait_s - 0.1) == []
    (late,) = engine.expire(5.0 + wait_s)
    assert (late.req_id, late.error.code) == ("held", "queue_timeout") and engine.num_held == 0


def test_no_more_are_held_than_may_queue():
    engine = ready_engine(Config(admission=Admission(queue_depth=2)))
    engine.pause(True, 0.0)
    ask(engine, "one")
    ask(engine, "two")
    with pytest.raises(RequestError) as caught:
        ask(engine, "three")
    assert caught.value.code == "queue_full"


def test_a_drain_refuses_what_never_ran():
    """Waiting and held requests alike; what runs goes on."""
    engine = ready_engine(Config(admission=Admission(seats=1)))
    ask(engine, "runs")
    assert engine.plan_step(0.0) is not None
    ask(engine, "waits")
    engine.pause(True, 0.0)
    ask(engine, "held")
    gone = engine.turn_away(0.0)
    assert {item.req_id for item in gone} == {"waits", "held"} and {item.error.code for item in gone} == {"shutting_down"}
    assert engine.open_requests() == ["runs"]


def test_an_operator_ends_a_request_wherever_it_is():
    engine = ready_engine()
    ask(engine, "runs")
    engine.pause(True, 0.0)
    ask(engine, "held")
    assert engine.end("nobody", 0.0, "why") == 0
    assert engine.end("runs", 0.0, "why") == 1 and engine.end("held", 0.0, "why") == 1
    (refused,) = engine.take_refusals()
    assert refused.req_id == "held" and "why" in refused.error.message
    (_, _, _, finish), *_ = engine.scheduler.outbox.due()
    assert finish.reason == "abort" and finish.error == "why"
    assert engine.open_requests() == []


def test_another_configuration_counts_at_once():
    """Bounds of the queue and of the prefix cache; seats and blocks stay as they are."""
    engine = ready_engine()
    limits = engine.scheduler.limits
    config = replace(engine.config, admission=Admission(queue_depth=1, queue_wait_s=3.0), cache=Cache(prefix_mib=0))
    engine.configure(config)
    new = engine.scheduler.limits
    assert (new.queue_depth, new.queue_wait_s, new.cached_blocks) == (1, 3.0, 0)
    assert (new.seats, new.blocks, new.context) == (limits.seats, limits.blocks, limits.context)
    engine.scheduler.check()


def test_a_keys_weight_is_its_share():
    """Two keys with much to do, one of weight 3: it is given three times the seats of the other."""
    engine = ready_engine(Config(admission=Admission(seats=1)))
    engine.set_weight("heavy", 3.0)
    for number in range(12):
        for key in ("heavy", "light"):
            ask(engine, f"{key}-{number}", key=key)
    served = []
    for _ in range(12):
        plan = engine.plan_step(0.0)
        (req_id,) = [item.request.req_id for item in engine.scheduler.running]
        served.append(req_id.partition("-")[0])
        engine.scheduler.apply_result(Result(plan.incarnation, plan.step, 0, True, plan.seats, [2], {}, {}, 1.0), 0.0)
    assert served.count("heavy") == 9


def test_the_next_scheduler_gives_a_model_what_it_had():
    """Its KV cache, whatever is free now; a first one is planned from what others were not promised."""
    assert ready_engine(blocks=77, seats=3, was_ready=True).ready_message().blocks == 77
    engine = Engine(ServeModel("m", "file:x", {"gguf": "x"}), Config(), 1, 0)
    engine.on_register(taken_bytes=64 * 1024 * 100)
    assert engine.on_message(Loaded(**LOADED), 0.0) == [] and engine.state == "failed" and "other models" in engine.error
