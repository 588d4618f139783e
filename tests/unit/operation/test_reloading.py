"""What a changed configuration means: which keys may change while the service runs, and who must be told."""

from __future__ import annotations

from dataclasses import fields

import pytest

from helexa import config as configuration
from helexa import reloading
from helexa.errors import ConfigError
from helexa.scheduler.sequence import Request, Sequence
from helexa.scheduler.waits import MOST_LINES, WaitReports
from ipc.messages import SamplingParams


def tree(**flags: object) -> configuration.Config:
    return configuration.load(None, {name.replace("__", "."): value for name, value in flags.items()}, {"HOME": "/"})


def test_live_keys_are_named_and_fixed_ones_refused():
    """All fixed ones are named; one of them is enough for nothing to change."""
    changed = reloading.changes(tree(), tree(admission__queue_depth=3, sampling__temperature=0.1))
    assert {item.path for item in changed} == {"admission.queue_depth", "sampling.temperature"}
    with pytest.raises(ConfigError) as caught:
        reloading.changes(tree(), tree(admission__queue_depth=3, server__port=9, cpu__threads=1))
    assert "`server.port`, `cpu.threads`" in caught.value.message and "queue_depth" not in caught.value.message
    assert reloading.changes(tree(), tree()) == []


@pytest.mark.parametrize(
    ("flags", "web", "model"),
    [
        ({"admission__queue_depth": 3}, False, False),
        ({"streaming__slow_client_s": 3.0}, True, False),
        ({"sampling__temperature": 0.1}, True, False),
        ({"default_model": "only"}, True, False),
        ({"model__source": "file:/x.gguf"}, False, True),
        ({"model__context": 64}, False, True),
    ],
)
def test_who_must_be_told(flags, web, model):
    changed = reloading.changes(tree(), tree(**flags))
    assert (reloading.reaches_web(changed), reloading.swaps_model(changed)) == (web, model)


def test_what_the_web_tier_alone_reads_is_live_only_where_its_workers_are_replaced():
    """Every live key is either the engine's (Settings), the supervisor's, a model's, or one that reaches the web tier."""
    supervisors = {
        "models",
        "aliases",
        "default_source",
        "offline",
        "hub.endpoint",
        "hub.auth_env",
        "watch.heartbeat_s",
        "watch.step_s",
    }
    engines = {
        "admission.queue_depth", "admission.queue_tokens", "admission.queue_wait_s", "scheduling.min_step_ms",
        "scheduling.reserve_tokens", "scheduling.steps_ahead", "cache.prefix_mib",
    }  # fmt: skip
    for item in configuration.describe():
        if item.reload == "live" and item.path not in supervisors | engines:
            assert reloading.reaches_web([item]) or reloading.swaps_model([item]), item.path


def test_no_section_was_forgotten():
    assert {item.name for item in fields(configuration.Config)} >= {"keys", "watch", "model"}


def test_the_key_file_lies_beside_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "helexa.toml").write_text('[keys]\nfile = "keys.json"\n')
    assert configuration.load(tmp_path / "helexa.toml", {}).keys.file == str(tmp_path / "keys.json")
    (tmp_path / "helexa.toml").write_text('[keys]\nfile = "~/keys.json"\n')
    monkeypatch.setenv("HOME", "/home/someone")
    assert configuration.load(tmp_path / "helexa.toml", {}).keys.file == "/home/someone/keys.json"


def test_long_waits_are_reported_again_and_again():
    """From 2 s on, every 2 s, one line a request, the longest first, and not too many."""

    def waiting(req_id: str, arrived: float, choice: int = 0) -> Sequence:
        request = Request(b"c", req_id, 1, SamplingParams(max_tokens=1), 2, arrived)
        return Sequence(request, choice, 0, [1], 1, 0)

    reports = WaitReports()
    queue = [waiting("new", 9.0), waiting("old", 1.0), waiting("old", 1.0, 1), waiting("older", 0.0)]
    assert [(item.request.req_id, seconds) for item, seconds in reports.due(queue, 10.0)] == [("older", 10.0), ("old", 9.0)]
    assert reports.due(queue, 11.9) == []
    assert [item.request.req_id for item, _ in reports.due(queue, 12.0)] == ["older", "old", "new"]
    assert len(WaitReports().due([waiting(f"r{index}", float(index) / 100) for index in range(50)], 100.0)) == MOST_LINES
    assert WaitReports().due([waiting("new", 9.0)], 10.0) == []
