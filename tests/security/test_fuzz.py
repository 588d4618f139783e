"""Hostile input to every surface of a running service: the same processes answer afterwards, as they did before."""

from __future__ import annotations

import threading

import pytest
from service import ROLES, serving
from transcripts import bodies, run_http, stream

from tools.fuzz import TARGETS, fuzz

pytestmark = pytest.mark.process

INPUTS = 2000
ALL_INPUTS = 100_000
SEED = 1


@pytest.fixture(scope="module")
def service(tmp_path_factory, tiny_model_path):
    with serving(tmp_path_factory.mktemp("fuzzed"), str(tiny_model_path), "--context", "256") as service:
        yield service


def attack(service, target: str, count: int, seed: int) -> None:
    """Beside a stream that must not notice: what others send never changes a reply."""
    probes = bodies(4, tokens=60, prompt="a neighbour")
    expected = run_http(service, probes)
    before = {role: service.pid(role) for role in ROLES}
    over = threading.Event()
    seen = []

    def neighbours() -> None:
        while not over.is_set() or not seen:
            seen.append(run_http(service, probes))

    thread = threading.Thread(target=neighbours)
    thread.start()
    try:
        fuzz(service.run_dir, target, count, seed)
    finally:
        over.set()
        thread.join()
    assert all(transcripts == expected for transcripts in seen)
    assert {role: service.pid(role) for role in ROLES} == before
    assert stream(service.port, probes[0]) == expected[0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_hostile_client_changes_nothing_for_others(service, target):
    """Each surface, 2,000 inputs: no 500, every error in its envelope, no process lost, no neighbour's token changed."""
    attack(service, target, INPUTS, SEED)
    model = service.status()["models"][0]
    assert model["counters"]["worker_losses"] == 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS)
def test_a_hostile_client_that_does_not_tire(service, target):
    """Each surface, 100,000 inputs."""
    attack(service, target, ALL_INPUTS, SEED + 1)
