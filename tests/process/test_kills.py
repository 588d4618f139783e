"""SIGKILL of one process while streams run: what goes on, goes on exactly as it would have."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from service import DEADLINE_S, Service, serving, wait_until_gone

pytestmark = pytest.mark.process

STREAMS = 16
BODIES = [
    {
        "model": "tiny",
        "prompt": f"stream number {index}. {'x' * (index * 11)}",
        "max_tokens": 200 + 7 * index,
        "temperature": 0 if index % 2 else 0.9,
        "seed": index,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    for index in range(STREAMS)
]


@dataclass
class Transcript:
    """What one client saw."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: dict | None = None
    error: object = None
    done: bool = False


def stream(port: int, body: dict, on_event: Callable[[], None]) -> Transcript:
    seen = Transcript()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    try:
        for raw in response:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                seen.done = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                seen.error = chunk.get("error") or seen.error
                seen.usage = chunk.get("usage") or seen.usage
                (seen.usage or {}).pop("prompt_tokens_details", None)  # what was cached tells of the past, not of the reply
                for choice in chunk.get("choices", []):
                    seen.text += choice["text"]
                    seen.ids += choice.get("token_ids") or []
                    seen.finish = choice["finish_reason"] or seen.finish
                on_event()
    except (http.client.HTTPException, OSError) as error:
        seen.error = error
    finally:
        connection.close()
    return seen


def run_streams(service: Service, disturb: Callable[[], None] | None, after_events: int = 2 * STREAMS) -> list[Transcript]:
    """All streams at once; `disturb` is called once, when that many events have come in all."""
    results: list[Transcript | None] = [None] * STREAMS
    lock, events, fired = threading.Lock(), [0], threading.Event()

    def on_event() -> None:
        with lock:
            events[0] += 1
            if events[0] >= after_events:
                fired.set()

    def run(index: int) -> None:
        results[index] = stream(service.port, BODIES[index], on_event)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(STREAMS)]
    for thread in threads:
        thread.start()
    if disturb is not None:
        assert fired.wait(DEADLINE_S)
        disturb()
        assert any(thread.is_alive() for thread in threads), "the kill came too late to disturb anything"
    for thread in threads:
        thread.join(DEADLINE_S)
    assert None not in results
    return results  # type: ignore[return-value]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny_model_path) -> list[Transcript]:
    with serving(tmp_path_factory.mktemp("calm"), str(tiny_model_path)) as service:
        transcripts = run_streams(service, None)
    for transcript, body in zip(transcripts, BODIES, strict=True):
        assert transcript.done and transcript.error is None
        assert transcript.usage["completion_tokens"] == body["max_tokens"] == len(transcript.ids)
    return transcripts


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_killed_engine_process_is_a_pause(tmp_path, tiny_model_path, undisturbed, role):
    """Ids, text, usage and finish reason of 16 ragged streams, greedy and sampled, equal the undisturbed run's; twice."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        for _ in range(2):
            dead: list[int] = []
            transcripts = run_streams(service, lambda dead=dead: dead.append(service.kill(role)))
            assert wait_until_gone(dead) == [] and service.pid(role) != dead[0]
            assert transcripts == undisturbed
        assert service.status()["models"][0]["blocks_used"] == 0


def test_a_killed_web_worker_drops_its_own_connections_alone(tmp_path, tiny_model_path, undisturbed):
    """Its streams break, the engine lets go of them, and the next web worker serves."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        engine = {role: service.pid(role) for role in ("arbiter", "supervisor", "scheduler", "worker")}
        dead: list[int] = []
        transcripts = run_streams(service, lambda: dead.append(service.kill("web")))
        assert not all(transcript.done for transcript in transcripts)
        assert wait_until_gone(dead) == []
        again = run_streams(service, None)
        assert again == undisturbed
        assert {role: service.pid(role) for role in engine} == engine
        model = service.status()["models"][0]
        assert model["blocks_used"] == 0 and model["running"] == 0


@pytest.mark.parametrize("role", ["worker", "scheduler", "web"])
def test_killed_while_idle_it_serves_again(tmp_path, tiny_model_path, undisturbed, role):
    """The next request after the kill is answered as ever: it waits in the listener's backlog, or in the scheduler's queue."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        dead = service.kill(role)
        assert wait_until_gone([dead]) == []
        seen = stream(service.port, BODIES[0], lambda: None)
        assert seen == undisturbed[0]


def test_a_closed_stream_has_left_the_scheduler_within_one_step(tmp_path, tiny_model_path):
    """A client that hangs up in mid-stream: its seat and blocks are free one step later at the latest, by count."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
        body = {**BODIES[0], "max_tokens": 450}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for _ in range(8):
            response.readline()
        response.close()
        connection.close()
        service.wait_for("aborted")
        stream(service.port, {**BODIES[0], "max_tokens": 2}, lambda: None)  # steps that come after the one in flight
        model = service.status()["models"][0]
        assert model["counters"]["aborted"] == 1
        assert model["counters"]["abort_release_steps_max"] <= 1
        assert model["running"] == 0 and model["blocks_used"] == 0
        assert model["counters"]["output_tokens"] < 450
