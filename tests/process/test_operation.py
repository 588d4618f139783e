"""What an operator does to a running service while streams run: none fails, none changes."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from operating_service import configured, ctl, get, raw
from prometheus_client.parser import text_string_to_metric_families
from service import DEADLINE_S, Service, serving
from tiny_model import write_tiny_model
from transcripts import Transcript, bodies, run_http, stream

from helexa.client import Client
from helexa.errors import RequestError

pytestmark = pytest.mark.process

BODIES = bodies(tokens=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """With a context in which streams last long enough to be disturbed."""
    return write_tiny_model(tmp_path_factory.mktemp("operation") / "tiny.gguf", context=1024)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model) -> list[Transcript]:
    with serving(tmp_path_factory.mktemp("calm"), str(model), "--ops", "reference") as service:
        transcripts = run_http(service, BODIES)
    assert all(transcript.whole for transcript in transcripts)
    return transcripts


def test_a_reload_under_streams_changes_none(tmp_path, model, undisturbed):
    """Bounds, sampling defaults and the log level change, web workers are replaced; 16 streams end as if nothing had been."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        web = service.pid("web")

        def disturb() -> None:
            text = '[admission]\nqueue_depth = 7\n[logging]\nlevel = "debug"\n[sampling]\ntemperature = 0.0\n'
            configured(tmp_path, model, text)
            code, output = ctl(tmp_path, service, "reload")
            assert code == 0 and "admission.queue_depth" in output and "configuration 2" in output, output

        assert run_http(service, BODIES, disturb) == undisturbed
        assert service.status()["generation"] == 2
        wait_until_web_is_new(service, web)
        greedy = {key: value for key, value in BODIES[0].items() if key not in ("temperature", "seed")}
        assert stream(service.port, greedy).ids == stream(service.port, {**greedy, "seed": 3}).ids  # the new default


def wait_until_web_is_new(service: Service, old: int) -> None:
    pidfd = None
    try:
        pidfd = os.pidfd_open(old)
    except ProcessLookupError:
        return
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(DEADLINE_S * 1e3), "the old web worker did not end"
    os.close(pidfd)


def test_a_swap_of_the_model_under_streams_drops_none(tmp_path, model, undisturbed):
    """The streams end on the model they began on; what comes afterwards is answered by the new one; the old worker is gone."""
    other = write_tiny_model(tmp_path / "other.gguf", context=1024, seed=99)
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        worker = service.pid("worker")

        def disturb() -> None:
            configured(tmp_path, other)
            code, output = ctl(tmp_path, service, "reload")
            assert code == 0, output

        assert run_http(service, BODIES, disturb) == undisturbed
        changed = stream(service.port, BODIES[0])
        assert changed.whole and changed.ids != undisturbed[0].ids
        service.wait_for("is unloaded")
        assert service.pid("worker") != worker
        assert [entry["source"] for entry in service.status()["models"]] == [f"file:{other}"]


def test_a_reload_that_fails_leaves_all_as_it_was(tmp_path, model, undisturbed):
    """A key that takes a restart is named; a model that does not exist, and a damaged one, are said; the old model answers."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        configured(tmp_path, model, "[admission]\nseats = 3\nqueue_depth = 9\n")
        code, output = ctl(tmp_path, service, "reload")
        assert code == 1 and "`admission.seats`" in output and "restart" in output
        configured(tmp_path, tmp_path / "missing.gguf")
        code, output = ctl(tmp_path, service, "reload")
        assert code == 1 and "missing.gguf" in output
        (tmp_path / "damaged.gguf").write_bytes(model.read_bytes()[:4000])
        configured(tmp_path, tmp_path / "damaged.gguf")
        code, output = ctl(tmp_path, service, "reload")
        assert code == 1 and "damaged.gguf" in output and "Nothing was changed" in output
        (tmp_path / "helexa.toml").write_text("[admission]\nqueue_dept = 1\n")
        answer = raw(service, b'{"v": 1, "cmd": "reload"}')
        assert not answer["ok"] and "did you mean `admission.queue_depth`" in answer["error"]
        assert service.status()["generation"] == 1
        assert stream(service.port, BODIES[0]) == undisturbed[0]


def test_a_drain_under_streams_lets_them_end(tmp_path, model, undisturbed):
    """16 streams end whole; a new request gets 503 shutting_down; `resume` takes requests again."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        refused: list[Transcript] = []

        def disturb() -> None:
            assert ctl(tmp_path, service, "drain")[0] == 0
            refused.append(stream(service.port, BODIES[0]))

        assert run_http(service, BODIES, disturb) == undisturbed
        status, error = refused[0].error  # type: ignore[misc]
        assert (status, error["code"]) == (503, "shutting_down")
        assert get(service, "/ready")[0] == 503 and json.loads(get(service, "/ready")[1])["state"] == "draining"
        assert ctl(tmp_path, service, "resume")[0] == 0
        assert stream(service.port, BODIES[0]) == undisturbed[0]


def test_a_drain_outlives_the_scheduler(tmp_path, model):
    """What an operator wants is the supervisor's to remember: the next scheduler drains too."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        assert ctl(tmp_path, service, "drain")[0] == 0
        service.kill("scheduler")
        service.wait_for("answers again")
        assert service.status()["draining"]
        with Client(service.run_dir) as client, pytest.raises(RequestError) as caught:
            list(client.submit([5, 6, 7], model="tiny", max_tokens=2))
        assert caught.value.code == "shutting_down"


def test_hang_up_under_streams_leaves_the_engine_alone(tmp_path, model, undisturbed):
    """HUP replaces the web workers: connections drain in the old one, the engine's processes stay, new requests are served."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        engine = {role: service.pid(role) for role in ("supervisor", "scheduler", "worker")}
        web = service.pid("web")
        fresh: list[Transcript] = []

        def disturb() -> None:
            service.process.send_signal(signal.SIGHUP)
            fresh.append(stream(service.port, BODIES[1]))

        assert run_http(service, BODIES, disturb) == undisturbed
        assert fresh == [undisturbed[1]]
        wait_until_web_is_new(service, web)
        assert {role: service.pid(role) for role in engine} == engine
        assert stream(service.port, BODIES[2]) == undisturbed[2]


def test_a_stop_after_hang_up_waits_for_the_old_web_worker(tmp_path, model, undisturbed):
    """Streams of a web worker that was replaced end whole when the service is then stopped."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:

        def disturb() -> None:
            service.process.send_signal(signal.SIGHUP)
            stream(service.port, {**BODIES[1], "max_tokens": 1})  # by the new one, or it would not be answered now
            service.process.send_signal(signal.SIGTERM)

        assert run_http(service, BODIES, disturb) == undisturbed
        assert service.wait() == 0


def test_a_stop_refuses_what_waits_and_ends_what_runs(tmp_path, model, undisturbed):
    """SIGTERM: requests in the queue end with shutting_down at once, the stream in the seat ends whole, the exit code is 0."""
    with serving(tmp_path, *configured(tmp_path, model, "[admission]\nseats = 1\n")) as service:
        waiting: list[Transcript] = []
        threads = [threading.Thread(target=lambda: waiting.append(stream(service.port, BODIES[1]))) for _ in range(2)]

        def disturb() -> None:
            for thread in threads:
                thread.start()
            service.wait_for("accepted", count=3)
            service.process.send_signal(signal.SIGTERM)

        assert run_http(service, BODIES[:1], disturb, after_events=3) == undisturbed[:1]
        for thread in threads:
            thread.join(DEADLINE_S)
        errors = [seen.error[1] if isinstance(seen.error, tuple) else seen.error for seen in waiting]  # before or in the stream
        assert [error["code"] for error in errors] == ["shutting_down"] * 2  # type: ignore[index]
        assert service.wait() == 0


def test_two_models_share_the_device(tmp_path, model, undisturbed):
    """`load` adds one; streams of both, at once, are those each has alone; `unload` lets its streams end."""
    other = write_tiny_model(tmp_path / "other.gguf", context=1024, seed=99)
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        code, output = ctl(tmp_path, service, "load", str(other), "--name", "second")
        assert code == 0 and "second is ready" in output, output
        second = [{**body, "model": "second"} for body in BODIES[:6]]
        alone = [stream(service.port, body) for body in second]
        assert all(transcript.whole for transcript in alone)
        asked = [*BODIES, *second]
        unloading: list[threading.Thread] = []

        def disturb() -> None:
            unloading.append(threading.Thread(target=ctl, args=(tmp_path, service, "unload", "second")))
            unloading[0].start()

        assert run_http(service, asked, disturb, after_events=200) == [*undisturbed, *alone]
        unloading[0].join(DEADLINE_S)
        assert [entry["name"] for entry in service.status()["models"]] == ["tiny"]
        gone = stream(service.port, second[0])
        assert gone.error is not None and gone.error[0] == 404  # type: ignore[index]
        code, output = ctl(tmp_path, service, "load", str(tmp_path / "missing.gguf"))
        assert code == 1 and "missing.gguf" in output
        assert stream(service.port, BODIES[0]) == undisturbed[0]


def test_a_killed_scheduler_with_two_models_is_a_pause(tmp_path, model, undisturbed):
    """Both models are served by the next scheduler, with their weights, and every stream goes on."""
    other = write_tiny_model(tmp_path / "other.gguf", context=1024, seed=99)
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        assert ctl(tmp_path, service, "load", str(other), "--name", "second")[0] == 0
        second = [{**body, "model": "second"} for body in BODIES[:4]]
        alone = [stream(service.port, body) for body in second]
        transcripts = run_http(service, [*BODIES, *second], lambda: service.kill("scheduler") and None)
        assert transcripts == [*undisturbed, *alone]


def test_pause_and_resume(tmp_path, model, undisturbed):
    """While a model is paused a request waits; it is answered after `resume`, in full."""
    with serving(tmp_path, *configured(tmp_path, model)) as service, Client(service.run_dir) as client:
        assert ctl(tmp_path, service, "pause", "tiny")[0] == 0
        waiting = client.submit([5, 6, 7], model="tiny", max_tokens=3, temperature=0)
        client.poll(0.2)
        assert service.status()["models"][0]["held"] == 1 and not waiting.ids()
        assert ctl(tmp_path, service, "resume", "tiny")[0] == 0
        assert len(list(waiting)) == 3
        code, output = ctl(tmp_path, service, "pause", "nobody")
        assert code == 1 and "served: tiny" in output


def test_abort_by_id(tmp_path, model):
    """An operator ends one request: its client is told why, and the others go on."""
    with serving(tmp_path, *configured(tmp_path, model)) as service, Client(service.run_dir) as client:
        victim = client.submit([5, 6, 7], model="tiny", max_tokens=900, ignore_eos=True)
        other = client.submit([5, 6, 7], model="tiny", max_tokens=60, ignore_eos=True)
        client.poll(DEADLINE_S)
        code, output = ctl(tmp_path, service, "abort", victim.req_id)
        assert code == 0 and "1 choice ended" in output
        assert len(list(other)) == 60
        while not victim.ended:
            client.poll(DEADLINE_S)
            victim.take()
        assert victim.finish.reason == "abort" and "operator" in victim.finish.error
        code, output = ctl(tmp_path, service, "abort", "nobody")
        assert code == 1 and "no request nobody" in output


def test_flush_cache_and_log_level(tmp_path, model):
    """Cached prefixes are forgotten; debug lines come after `log-level debug`, and the wrong level is refused."""
    with serving(tmp_path, *configured(tmp_path, model)) as service:
        stream(service.port, BODIES[5])
        assert service.status()["models"][0]["blocks_cached"] > 0
        assert ctl(tmp_path, service, "flush-cache")[0] == 0
        assert service.status()["models"][0]["blocks_cached"] == 0
        assert stream(service.port, BODIES[5]).whole
        code, output = ctl(tmp_path, service, "log-level", "loud")
        assert code == 1 and "logging.level" in output
        assert ctl(tmp_path, service, "log-level", "error")[0] == 0
        lines = len(service.report)
        assert stream(service.port, {**BODIES[5], "max_tokens": 3}).whole
        assert not [line for line in service.report[lines:] if "scheduler: accepted" in line]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{", "Expecting"),
        (b'{"v": 2, "cmd": "status"}', '"v": 1'),
        (b'{"v": 1, "cmd": "fly"}', "known: "),
        (b'{"v": 1, "cmd": "status", "x": "y"}', "unknown field `x`"),
        (b'{"v": 1, "cmd": "load"}', "needs `model`"),
        (b'{"v": 1, "cmd": "load", "model": 3}', "must be a string"),
        (b'{"v": 1, "cmd": ["status"]}', "unknown command"),
    ],
)
def test_the_control_socket_answers_what_is_no_command(shared_service, line, word):
    answer = raw(shared_service, line)
    assert answer["ok"] is False and word in answer["error"]


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("shared")
    with serving(folder, *configured(folder, model)) as service:
        yield service


def test_metrics_are_prometheus_text(shared_service):
    """prometheus_client's own parser reads them; names are unique, counters end in _total, vLLM's names are there."""
    assert stream(shared_service.port, BODIES[0]).whole
    status, text, headers = get(shared_service, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE")
    for name in (
        "helexa_requests",
        "helexa_ended",
        "helexa_inter_token_seconds",
        "helexa_time_to_first_token_seconds",
        "helexa_model_memory_bytes",
        "vllm:num_requests_running",
        "vllm:generation_tokens",
        "vllm:time_to_first_token_seconds",
        "vllm:request_success",
        "vllm:kv_cache_usage_perc",
    ):
        assert families[name].samples, name
    for family in families.values():
        for sample in family.samples:
            assert family.type != "counter" or sample.name.endswith(("_total", "_created")), sample
    drawn = [sample.value for sample in families["helexa_output_tokens"].samples if sample.labels["model"] == "tiny"]
    assert drawn[0] >= BODIES[0]["max_tokens"]


@pytest.mark.long
def test_a_worker_that_will_not_end_is_killed_and_not_replaced(tmp_path, model):
    """Unloaded while its worker hangs in a step whose client has left: killed after 20 s, and that is the end of it."""
    other = write_tiny_model(tmp_path / "other.gguf", context=1024, seed=99)
    arguments = configured(tmp_path, model, "[debug]\nfaults = true\n")
    with serving(tmp_path, *arguments, HELEXA_FAULT="hang:token=77") as service:
        first = service.pid("worker")
        assert ctl(tmp_path, service, "load", str(other), "--name", "second")[0] == 0
        with Client(service.run_dir) as client:
            client.submit([5, 77, 7], model="second", max_tokens=100)
            client.poll(DEADLINE_S)  # taken, so its first step was planned
        answer = raw(service, b'{"v": 1, "cmd": "unload", "model": "second"}')
        assert answer["ok"], answer
        service.wait_for("did not end within 20 s; killed")
        workers = [process.pid for process in service.tree() if "workers.process" in process.cmdline()]
        assert workers == [first]
        assert [entry["name"] for entry in service.status()["models"]] == ["tiny"]
