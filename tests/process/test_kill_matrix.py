"""SIGKILL and SIGSTOP of every process, in every phase of its work, of greedy, sampled, penalised and constrained streams, over
HTTP and over ZeroMQ. A seeded sample runs with the other tests, the whole of it with `tools/long_checks.sh kills`.

Whatever is done to a device worker or to the scheduler, sixteen streams end as if nothing had been. A web worker that is killed
takes its own connections along. When the arbiter or the supervisor is killed, nothing is left. A process that is only stopped for a
while, and is none that the others wait for, is not even noticed. A worker may be of two ranks: they end together, whichever is hit.
"""

from __future__ import annotations

import itertools
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from service import DEADLINE_S, Service, assert_nothing_left, serving, wait_until_gone
from transcripts import STREAMS, Body, Transcript, bodies, run_http, run_zmq

pytestmark = pytest.mark.process

ROLES = ("worker", "scheduler", "supervisor", "arbiter", "web")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
SAMPLING: dict[str, Body] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "grammar": {"temperature": 0.9, "guided_regex": "([a-p]{3,9} ){60,90}"},
}


@dataclass(frozen=True)
class Phase:
    """What the service is doing, by its settings, when so many lines or tokens have come."""

    flags: tuple[str, ...] = ()
    settings: str = ""
    events: int = 3 * STREAMS
    before: str = ""  # what is done just before: `lose` the worker, so that the next one loads; `reload` with another context


WATCH = "[watch]\nheartbeat_s = 1.0\n"
PHASES = {
    "queue": Phase(flags=("--seats", "2"), events=6),
    "prefill": Phase(settings="[scheduling]\nstep_tokens = 16\n", events=1),
    "decode": Phase(),
    "load": Phase(before="lose"),
    "reload": Phase(before="reload"),
}


@dataclass(frozen=True)
class Case:
    role: str
    number: signal.Signals
    phase: str
    sampling: str
    wire: str
    ranks: int = 1

    def __str__(self) -> str:
        ranks = "" if self.ranks == 1 else f"-tp{self.ranks}"
        return f"{self.number.name}-{self.role.replace(' ', '')}-{self.phase}-{self.sampling}-{self.wire}{ranks}"

    @property
    def values(self) -> set[object]:
        return {self.role, self.number, self.phase, self.sampling, self.wire}

    @property
    def worker(self) -> tuple[str, ...]:
        """The roles of the worker's processes."""
        return ("worker",) if self.ranks == 1 else tuple(f"rank {rank}" for rank in range(self.ranks))

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.worker, *(role for role in ROLES if role != "worker"))

    @property
    def hit(self) -> tuple[str, ...]:
        """Whom the signal reaches, and who goes along."""
        return self.worker if self.role in self.worker else (self.role,)


CASES = [
    Case(*values)
    for values in itertools.product(ROLES, SIGNALS, PHASES, SAMPLING, ("http", "zmq"))
    if values[3:] != ("grammar", "zmq")  # grammars of the ZeroMQ wire are the worker's own text
]

RANK_CASES = [
    Case(*values, "sampled", "http", ranks=2) for values in itertools.product(("rank 0", "rank 1", "scheduler"), SIGNALS, PHASES)
]


def sample(cases: list[Case], count: int, seed: int) -> list[Case]:
    """A random part of the matrix in which each value of each dimension occurs."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    chosen: list[Case] = []
    while len(chosen) < count:
        seen = {value for case in chosen for value in case.values}
        fresh = [len(case.values - seen) for case in shuffled]
        chosen.append(shuffled.pop(fresh.index(max(fresh))))
    return chosen


SAMPLE = sample(CASES, 8, seed=5)
RANK_SAMPLE = sample(RANK_CASES, 3, seed=5)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tiny_model_path) -> Callable[[Case], list[Transcript]]:
    """What the case's streams are when nothing happens."""
    known: dict[str, list[Transcript]] = {}

    def get(case: Case) -> list[Transcript]:
        if case.sampling not in known:
            with serving(tmp_path_factory.mktemp("calm"), str(tiny_model_path)) as service:
                known[case.sampling] = run_http(service, asked(case))
            assert all(seen.whole and seen.finish == "length" for seen in known[case.sampling])
        return [as_on(case.wire, seen) for seen in known[case.sampling]]

    return get


def asked(case: Case) -> list[Body]:
    return bodies(tokens=150, **SAMPLING[case.sampling])


def as_on(wire: str, seen: Transcript) -> Transcript:
    """What can be seen of it on that wire: ZeroMQ has no text, and counts less."""
    if wire == "http":
        return seen
    usage = {name: seen.usage[name] for name in ("prompt_tokens", "completion_tokens")}
    return Transcript({}, seen.tokens, seen.finishes, usage, seen.error, seen.done)


class Over(Exception):
    """The service is gone; there is nothing more to see."""


class Disturbance:
    """Does to the service what a case says."""

    def __init__(self, case: Case, service: Service) -> None:
        self.case, self.service = case, service
        self.before = {role: service.pid(role) for role in case.roles}
        self.everybody = [process.pid for process in service.tree()]
        self.hit = 0

    def __call__(self) -> None:
        case, service = self.case, self.service
        if PHASES[case.phase].before == "lose":
            wait_until_gone([service.kill(case.worker[-1])])
            wait_for_next_worker(service)
            self.before |= {role: service.pid(role) for role in case.worker}
            self.everybody = [process.pid for process in service.tree()]
        if PHASES[case.phase].before == "reload":
            begin_reload(service, case.ranks)
            self.everybody = [process.pid for process in service.tree()]
        self.hit = service.kill(case.role, case.number)
        if case.number is signal.SIGKILL and case.role in ("arbiter", "supervisor"):
            raise Over
        if case.number is signal.SIGSTOP and case.role == "web":
            assert service.status()["ok"]  # the engine does not wait for it
            service.kill("web", signal.SIGCONT)


def settings_of(ranks: int) -> str:
    return f"{WATCH}[devices]\ntensor_parallel = {ranks}\n"


def begin_reload(service: Service, ranks: int) -> None:
    """The model is being loaded a second time, with another context; the first one goes on."""
    (service.run_dir.parent.parent / "helexa.toml").write_text(f"{settings_of(ranks)}[model]\ncontext = 500\n")
    with socket.socket(socket.AF_UNIX) as operator:
        operator.connect(str(service.run_dir / "control.sock"))
        operator.sendall(b'{"v": 1, "cmd": "reload"}\n')
        deadline = time.monotonic() + DEADLINE_S
        while len(service.status()["models"]) < 2:
            assert time.monotonic() < deadline, "no second model came"


def wait_for_next_worker(service: Service) -> None:
    """Until it has begun to load."""
    deadline = time.monotonic() + DEADLINE_S
    while service.status()["models"][0]["worker"] == "lost":
        assert time.monotonic() < deadline, "no worker came"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if case in SAMPLE + RANK_SAMPLE else pytest.mark.long)
        for case in CASES + RANK_CASES
    ],
)
def test_kill_matrix(tmp_path, tiny_model_path, expected, case):
    """One process, one signal, one moment."""
    phase, undisturbed = PHASES[case.phase], expected(case)
    (tmp_path / "helexa.toml").write_text(f"{phase.settings}{settings_of(case.ranks)}")
    with serving(tmp_path, str(tiny_model_path), *phase.flags) as service:
        disturbance = Disturbance(case, service)
        run = run_http if case.wire == "http" else run_zmq
        try:
            seen = run(service, asked(case), disturbance, phase.events)
        except Over:
            check_nothing_is_left(disturbance)
            return
        if case.role == "web" and case.number is signal.SIGKILL and case.wire == "http":
            assert not all(transcript.whole for transcript in seen)
            seen = run(service, asked(case))
        assert seen == undisturbed
        check_who_lives(disturbance)


def check_nothing_is_left(disturbance: Disturbance) -> None:
    code = disturbance.service.wait()
    assert code == (-signal.SIGKILL if disturbance.case.role == "arbiter" else 1)
    assert wait_until_gone(disturbance.everybody) == []
    assert_nothing_left(disturbance.service)


def check_who_lives(disturbance: Disturbance) -> None:
    """Who was killed was replaced, nobody else was, and nothing is held."""
    case, service = disturbance.case, disturbance.service
    replaced = case.number is signal.SIGKILL or case.role in (*case.worker, "scheduler")
    if replaced:
        assert wait_until_gone([disturbance.hit]) == []
    else:
        service.kill(case.role, signal.SIGCONT)
    if case.phase == "reload":
        return  # workers, web workers and the model's name changed hands
    for role, pid in disturbance.before.items():
        assert (service.pid(role) != pid) == (replaced and role in case.hit), role
    model = settled(service)
    assert (model["running"], model["waiting"], model["blocks_used"]) == (0, 0, 0)


def settled(service: Service) -> dict:
    """The model's status, once it answers again: streams may end before the next scheduler or worker is there."""
    deadline = time.monotonic() + DEADLINE_S
    while not (models := service.status()["models"]) or models[0]["state"] != "ready":
        assert time.monotonic() < deadline, "the model does not come back"
    return models[0]


def test_the_sample_has_something_of_everything():
    """Each role, signal, phase, kind of sampling and wire; of two ranks, each and the scheduler."""
    assert set().union(*(case.values for case in SAMPLE)) == {*ROLES, *SIGNALS, *PHASES, *SAMPLING, "http", "zmq"}
    assert set().union(*(case.values for case in RANK_SAMPLE)) >= {"rank 0", "rank 1", "scheduler", *SIGNALS}
