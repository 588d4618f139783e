"""SIGKILL of one process while streams run: what goes on, goes on exactly as it would have."""

from __future__ import annotations

import http.client
import json

import pytest
from service import DEADLINE_S, serving, wait_until_gone
from tiny_model import write_tiny_model
from transcripts import Transcript, bodies, run_http, stream

pytestmark = pytest.mark.process

BODIES = bodies()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny_model_path) -> list[Transcript]:
    with serving(tmp_path_factory.mktemp("calm"), str(tiny_model_path)) as service:
        transcripts = run_http(service, BODIES)
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
            transcripts = run_http(service, BODIES, lambda dead=dead: dead.append(service.kill(role)))
            assert wait_until_gone(dead) == [] and service.pid(role) != dead[0]
            assert transcripts == undisturbed
        assert service.status()["models"][0]["blocks_used"] == 0


def test_a_killed_web_worker_drops_its_own_connections_alone(tmp_path, tiny_model_path, undisturbed):
    """Its streams break, the engine lets go of them, and the next web worker serves."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        engine = {role: service.pid(role) for role in ("arbiter", "supervisor", "scheduler", "worker")}
        dead: list[int] = []
        transcripts = run_http(service, BODIES, lambda: dead.append(service.kill("web")))
        assert not all(transcript.done for transcript in transcripts)
        assert wait_until_gone(dead) == []
        again = run_http(service, BODIES)
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
        seen = stream(service.port, BODIES[0])
        assert seen == undisturbed[0]


def test_a_closed_stream_has_left_the_scheduler_within_one_step(tmp_path):
    """A client that hangs up in mid-stream: its seat and blocks are free one step later at the latest, by count. Its reply is so long
    that it cannot have ended before."""
    model = write_tiny_model(tmp_path / "long.gguf", context=8192)
    with serving(tmp_path, str(model), "--name", "tiny", "--ops", "reference") as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
        body = {**BODIES[0], "max_tokens": 8000}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for _ in range(8):
            response.readline()
        response.close()
        connection.close()
        service.wait_for("aborted")
        stream(service.port, {**BODIES[0], "max_tokens": 2})  # steps that come after the one in flight
        model = service.status()["models"][0]
        assert model["counters"]["aborted"] == 1
        assert model["counters"]["abort_release_steps_max"] <= 1
        assert model["running"] == 0 and model["blocks_used"] == 0
        assert model["counters"]["output_tokens"] < 8000
