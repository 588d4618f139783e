"""Models that are in memory only while somebody asks for them: two tiny ones, and memory for one."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from operating_service import configured, ctl, get
from service import DEADLINE_S, Service, serving, wait_until_gone
from tiny_model import write_tiny_model
from transcripts import Transcript, bodies, run_http, stream

from helexa.client import Client

pytestmark = pytest.mark.process

BODIES = bodies(6, tokens=300)
OTHERS = [{**body, "model": "other"} for body in BODIES]
# each takes 32 MiB of KV, and its process some 50: two of them are too much
ROOM_FOR_ONE = "[memory]\nlimit_mib = 130\nkv_blocks = 8192\n"
ROOM_FOR_BOTH = "[memory]\nlimit_mib = 2000\nkv_blocks = 300\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("two")
    seeds = {"tiny": 0, "other": 99}
    return {name: write_tiny_model(folder / f"{name}.gguf", context=1024, seed=seed) for name, seed in seeds.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, models) -> dict[str, list[Transcript]]:
    """What each model answers where both are in memory from the start."""
    folder = tmp_path_factory.mktemp("calm")
    configured(folder, models["tiny"], ROOM_FOR_BOTH + listed(models, 'load = "start"'))
    with serving(folder) as service:
        seen = run_http(service, [*BODIES, *OTHERS])
        assert states(service) == {"tiny": "ready", "other": "ready"}
    assert all(transcript.whole for transcript in seen)
    return {"tiny": seen[: len(BODIES)], "other": seen[len(BODIES) :]}


def listed(models: dict[str, Path], *more: str) -> str:
    return "\n".join(["[models.other]", f'source = "{models["other"]}"', *more, ""])


def first_model(folder: Path, line: str) -> None:
    """One more line for [model]."""
    text = (folder / "helexa.toml").read_text()
    (folder / "helexa.toml").write_text(text.replace('name = "tiny"\n', f'name = "tiny"\n{line}\n'))


def states(service: Service) -> dict[str, str]:
    return {model["name"]: model["state"] for model in service.status()["models"]}


def test_a_listed_model_is_loaded_on_its_first_request(tmp_path, models, undisturbed):
    """It is not there until somebody asks; those who ask while it loads wait, and are answered as ever. The first one stays."""
    configured(tmp_path, models["tiny"], ROOM_FOR_BOTH + listed(models))
    with serving(tmp_path) as service:
        assert states(service) == {"tiny": "ready", "other": "unloaded"}
        described = {model["id"]: model["status"] for model in json.loads(get(service, "/v1/models")[1])["data"]}
        assert described == {"tiny": "ready", "other": "unloaded"}
        assert "other: unloaded" in ctl(tmp_path, service, "status")[1]
        assert run_http(service, [*BODIES, *OTHERS]) == [*undisturbed["tiny"], *undisturbed["other"]]
        assert states(service) == {"tiny": "ready", "other": "ready"}


def test_where_only_one_fits_the_one_that_is_not_used_makes_room(tmp_path, models, undisturbed):
    """Each in turn, over HTTP and ZeroMQ; its worker ends, and its counters stay."""
    configured(tmp_path, models["tiny"], ROOM_FOR_ONE + listed(models))
    with serving(tmp_path) as service:
        first = service.pid("worker")
        assert stream(service.port, BODIES[0]) == undisturbed["tiny"][0]
        assert stream(service.port, OTHERS[0]) == undisturbed["other"][0]
        assert wait_until_gone([first]) == []
        assert states(service) == {"tiny": "unloaded", "other": "ready"}
        with Client(service.run_dir) as client:
            asked = client.submit([5, 6, 7], model="tiny", max_tokens=3, temperature=0)
            assert len(list(asked)) == 3
        assert states(service) == {"tiny": "ready", "other": "unloaded"}
        assert service.status()["models"][0]["counters"]["requests"] == 2
        assert stream(service.port, BODIES[1]) == undisturbed["tiny"][1]


def test_streams_end_before_their_model_leaves(tmp_path, models, undisturbed):
    """Asked for the other one amid six streams: they end whole, then it is loaded; who asks for the first meanwhile waits its turn."""
    configured(tmp_path, models["tiny"], ROOM_FOR_ONE + listed(models))
    with serving(tmp_path) as service:
        late: list[Transcript] = []
        threads = [
            threading.Thread(target=lambda body=body: late.append(stream(service.port, body))) for body in (OTHERS[1], BODIES[1])
        ]

        def ask_for_both() -> None:
            threads[0].start()
            service.wait_for("tiny leaves")
            threads[1].start()

        assert run_http(service, BODIES, ask_for_both) == undisturbed["tiny"]
        for thread in threads:
            thread.join(DEADLINE_S)
        assert late == [undisturbed["other"][1], undisturbed["tiny"][1]]
        assert all(model["counters"]["worker_losses"] == 0 for model in service.status()["models"] if "counters" in model)


def test_a_pinned_model_stays(tmp_path, models, undisturbed):
    """Who asks for the other one is told at once what is in the way; the pinned one answers as before."""
    configured(tmp_path, models["tiny"], ROOM_FOR_ONE + listed(models))
    first_model(tmp_path, "pinned = true")
    with serving(tmp_path) as service:
        for _ in range(2):
            seen = stream(service.port, OTHERS[0])
            assert seen.error[0] == 503 and "pinned" in seen.error[1]["message"], seen.error
        assert stream(service.port, BODIES[0]) == undisturbed["tiny"][0]


def test_a_model_that_cannot_be_loaded_says_why(tmp_path, models, undisturbed):
    """A file that is not there, and a damaged one: 503 with the reason for HTTP, refused for ZeroMQ; the first one does not notice."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(models["other"].read_bytes()[:4000])
    text = f'[models.missing]\nsource = "{tmp_path / "missing.gguf"}"\n[models.damaged]\nsource = "{damaged}"\n'
    configured(tmp_path, models["tiny"], ROOM_FOR_BOTH + text)
    with serving(tmp_path) as service:
        for name in ("missing", "damaged"):
            seen = stream(service.port, {**BODIES[0], "model": name})
            assert seen.error[0] == 503 and f"{name}.gguf" in seen.error[1]["message"], seen.error
            assert states(service)[name] == "failed"
        assert stream(service.port, BODIES[0]) == undisturbed["tiny"][0]
        damaged.write_bytes(models["other"].read_bytes())
        assert ctl(tmp_path, service, "load", "damaged")[0] == 0
        assert stream(service.port, {**OTHERS[0], "model": "damaged"}).ids == undisturbed["other"][0].ids


def test_how_much_room_it_takes_is_seen_once_it_is_there(tmp_path, models, undisturbed):
    """A model whose file was not there when the service started: looked at first, then the other makes room for it."""
    late = tmp_path / "late.gguf"
    configured(tmp_path, models["tiny"], ROOM_FOR_ONE + f'[models.late]\nsource = "{late}"\n')
    with serving(tmp_path) as service:
        assert states(service) == {"tiny": "ready", "late": "unloaded"}
        late.write_bytes(models["other"].read_bytes())
        assert stream(service.port, {**OTHERS[0], "model": "late"}).ids == undisturbed["other"][0].ids
        assert states(service) == {"tiny": "unloaded", "late": "ready"}


def test_an_operator_loads_and_unloads_a_listed_model(tmp_path, models, undisturbed):
    """`load` before anybody asks, `unload` once its streams have ended; it comes back on request."""
    configured(tmp_path, models["tiny"], ROOM_FOR_BOTH + listed(models))
    with serving(tmp_path) as service:
        code, output = ctl(tmp_path, service, "load", "other")
        assert code == 0 and "other is ready" in output and states(service)["other"] == "ready"
        assert ctl(tmp_path, service, "load", "other")[0] == 1
        unloading = threading.Thread(target=ctl, args=(tmp_path, service, "unload", "other"))
        assert run_http(service, OTHERS, unloading.start, after_events=12) == undisturbed["other"]
        unloading.join(DEADLINE_S)
        assert states(service)["other"] == "unloaded"
        code, output = ctl(tmp_path, service, "unload", "other")
        assert code == 1 and "is not loaded" in output
        assert stream(service.port, OTHERS[0]) == undisturbed["other"][0]


def test_a_reload_lists_models_anew(tmp_path, models):
    """One that is listed no more ends, a new one is served on request."""
    configured(tmp_path, models["tiny"], listed(models))
    with serving(tmp_path) as service:
        configured(tmp_path, models["tiny"], f'[models.third]\nsource = "{models["other"]}"\n')
        code, output = ctl(tmp_path, service, "reload")
        assert code == 0 and "models" in output, output
        assert stream(service.port, {**OTHERS[0], "model": "third"}).whole
        assert stream(service.port, OTHERS[0]).error[0] == 404
        configured(tmp_path, models["tiny"], f'[models.tiny]\nsource = "{models["other"]}"\n')
        code, output = ctl(tmp_path, service, "reload")
        assert code == 1 and "models.tiny" in output


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_death_forgets_nobody_who_waits(tmp_path, models, undisturbed, role):
    """Killed while the other model is being loaded for six requests: whoever comes next loads it, and all are answered."""
    configured(tmp_path, models["tiny"], ROOM_FOR_ONE + listed(models))
    with serving(tmp_path) as service:
        seen: list[list[Transcript]] = []
        asking = threading.Thread(target=lambda: seen.append(run_http(service, OTHERS)))
        asking.start()
        service.wait_for("tiny leaves")
        service.kill(role)
        asking.join(DEADLINE_S)
        assert seen == [undisturbed["other"]]


def test_a_service_may_start_with_nothing_in_memory(tmp_path, models, undisturbed):
    """`load = "request"` for the first model too: ready at once, loaded when somebody asks."""
    configured(tmp_path, models["tiny"], listed(models))
    first_model(tmp_path, 'load = "request"')
    with serving(tmp_path) as service:
        assert states(service) == {"tiny": "unloaded", "other": "unloaded"}
        assert json.loads(get(service, "/ready")[1])["state"] == "ready"
        assert stream(service.port, BODIES[0]) == undisturbed["tiny"][0]
        assert states(service) == {"tiny": "ready", "other": "unloaded"}
