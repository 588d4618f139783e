"""Each class of fault, injected into the real service: who is told, who ends, and that all others go on exactly as they would have."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from service import DEADLINE_S, free_port, helexa, launch, serving, wait_until_gone
from transcripts import STREAMS, Transcript, bodies, run_http, stream

pytestmark = pytest.mark.process

BODIES = bodies()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny_model_path) -> list[Transcript]:
    with serving(tmp_path_factory.mktemp("calm"), str(tiny_model_path)) as service:
        seen = run_http(service, BODIES)
    assert all(transcript.whole for transcript in seen)
    return seen


@pytest.fixture(scope="module")
def odd_token(undisturbed) -> int:
    """An id that no undisturbed stream computes."""
    return next(id for id in range(131, 259) if not any(id in transcript.ids for transcript in undisturbed))


def faulty(folder: Path, model: Path, fault: str, **watch: float):
    """A service with that fault."""
    lines = [f"{name} = {value}" for name, value in watch.items()]
    (folder / "helexa.toml").write_text("\n".join(["[debug]", "faults = true", "[watch]", *lines]))
    return serving(folder, str(model), HELEXA_FAULT=fault)


def with_odd_prompt(odd_token: int) -> list[dict]:
    """The sixteen requests, the last with a prompt that sets the fault off."""
    return [*BODIES[:-1], {**BODIES[-1], "prompt": [100, odd_token, 101]}]


@pytest.mark.parametrize(
    ("fault", "counter", "said"),
    [
        ("device:step=30", "device_faults", "device fault"),
        ("memory:step=30", "memory_faults", "memory fault"),
        ("crash:step=30", "worker_losses", "killed"),
        ("hang:step=30", "hangs", "has not answered a step for 1 s"),
    ],
    ids=lambda value: value.split(":")[0],
)
def test_a_worker_with_a_fault_is_replaced_and_its_streams_go_on(tmp_path, tiny_model_path, undisturbed, fault, counter, said):
    """Device fault, out of memory, sudden death, a step that never ends: a pause, a line in the log, a count."""
    with faulty(tmp_path, tiny_model_path, fault, step_s=1.0) as service:
        first = service.pid("worker")
        assert run_http(service, BODIES) == undisturbed
        assert wait_until_gone([first]) == []
        model = service.status()["models"][0]
        assert model["counters"][counter] == model["counters"]["worker_losses"] == 1
        assert (model["state"], model["worker"], model["blocks_used"]) == ("ready", "ready", 0)
        service.wait_for(said)
        with urllib.request.urlopen(f"{service.url}/metrics", timeout=DEADLINE_S) as reply:
            assert f'helexa_{counter}_total{{model="tiny"}} 1.0' in reply.read().decode()


@pytest.mark.parametrize(
    ("kind", "counter", "said"),
    [("row", "row_errors", "nan"), ("request", "request_errors", "the request could not be done")],
    ids=["row", "request"],
)
def test_a_faulty_row_or_request_ends_itself_alone(tmp_path, tiny_model_path, undisturbed, odd_token, kind, counter, said):
    """NaN logits, or parameters that cannot be followed: that stream ends with an error, the worker and the others do not notice."""
    with faulty(tmp_path, tiny_model_path, f"{kind}:token={odd_token}") as service:
        first = service.pid("worker")
        seen = run_http(service, with_odd_prompt(odd_token))
        assert seen[:-1] == undisturbed[:-1]
        assert seen[-1].error and not seen[-1].ids
        assert service.pid("worker") == first
        counters = service.status()["models"][0]["counters"]
        assert counters[counter] == 1 and counters["worker_losses"] == 0
        service.wait_for(said)


@pytest.mark.parametrize("fault", ["crash", "device", "hang"])
def test_a_request_that_workers_die_of_ends_alone(tmp_path, tiny_model_path, undisturbed, odd_token, fault):
    """Beside fifteen others: two deaths make it suspect, a third, by itself, convicts it; nobody else is lost."""
    with faulty(tmp_path, tiny_model_path, f"{fault}:token={odd_token}", step_s=0.5) as service:
        seen = run_http(service, with_odd_prompt(odd_token))
        assert seen[:-1] == undisturbed[:-1]
        assert "is not tried again" in str(seen[-1].error)
        counters = service.status()["models"][0]["counters"]
        assert counters["poisonous"] == 1 and counters["worker_losses"] <= 3
        assert stream(service.port, BODIES[0]) == undisturbed[0]


def test_alone_such_a_request_costs_two_workers(tmp_path, tiny_model_path, odd_token):
    """Not streamed it is a 500; the next request is served."""
    with faulty(tmp_path, tiny_model_path, f"crash:token={odd_token}") as service:
        body = {**with_odd_prompt(odd_token)[-1], "stream": False, "stream_options": None}
        request = urllib.request.Request(
            f"{service.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=DEADLINE_S)
        assert caught.value.code == 500 and "is not tried again" in caught.value.read().decode()
        assert service.status()["models"][0]["counters"]["worker_losses"] == 2
        assert stream(service.port, {**BODIES[0], "max_tokens": 4}).whole


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_stopped_process_is_replaced(tmp_path, tiny_model_path, undisturbed, role):
    """SIGSTOP: it says nothing any more, is killed after watch.heartbeat_s, and the streams go on."""
    with faulty(tmp_path, tiny_model_path, "", heartbeat_s=1.0) as service:
        dead: list[int] = []
        seen = run_http(service, BODIES, lambda: dead.append(service.kill(role, signal.SIGSTOP)))
        assert seen == undisturbed
        assert wait_until_gone(dead) == [] and service.pid(role) != dead[0]
        service.wait_for("silent for 1 s")


def test_a_supervisor_that_was_stopped_blames_nobody(tmp_path, tiny_model_path, undisturbed):
    """Stopped with its children for longer than they may be silent, and woken: all live, and answer as ever."""
    with faulty(tmp_path, tiny_model_path, "", heartbeat_s=1.0) as service:
        pids = {role: service.pid(role) for role in ("supervisor", "scheduler", "worker")}

        def freeze_all_for_a_while() -> None:
            for role in pids:
                service.kill(role, signal.SIGSTOP)
            wait_until_gone([service.process.pid], seconds=4.0)
            for role in pids:
                service.kill(role, signal.SIGCONT)

        assert run_http(service, BODIES, freeze_all_for_a_while) == undisturbed
        assert {role: service.pid(role) for role in pids} == pids


def test_a_worker_that_always_dies_is_given_up(tmp_path, tiny_model_path):
    """Restarts are bounded: then 503 with the reason, for those that wait too, and the service stays up."""
    with faulty(tmp_path, tiny_model_path, "crash:step=1,lives=99") as service:
        seen = run_http(service, BODIES)
        assert len(seen) == STREAMS and all(transcript.error for transcript in seen)
        last = stream(service.port, BODIES[0])
        assert last.error[0] == 503 and "its worker died 6 times" in last.error[1]["message"]


@pytest.mark.parametrize(
    ("config", "fault", "expected"),
    [
        ("", "device", "debug.faults is not"),
        ("[debug]\nfaults = true\n", "earthquake", "no fault `earthquake`"),
        ("[debug]\nfaults = true\n", "row:step=0", "counted from 1"),
        ("[debug]\nfaults = true\n", "row:step=1,token=2", "or a token"),
        ("[debug]\nfaults = true\n", "row:speed=1", "`speed=1` is not"),
    ],
)
def test_faults_are_refused_unless_the_configuration_allows_them(tmp_path, tiny_model_path, config, fault, expected):
    """By exit code 2, before anything starts."""
    (tmp_path / "helexa.toml").write_text(config)
    service = launch(tmp_path, free_port(), helexa("serve", str(tiny_model_path)), HELEXA_FAULT=fault)
    assert service.wait() == 2
    service.wait_for(expected)
