"""A worker may be at the scheduler's socket before the supervisor's word on its model: two sockets promise no order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helexa.config import Config
from helexa.metrics import Metrics
from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import Roster
from helexa.scheduler.worker_links import WorkerLinks
from helexa.watching import WatchedTime
from ipc import codec, sockets
from ipc.leash_messages import ServeModel
from ipc.messages import PROTOCOL_VERSION, Load, Register
from ipc.sockets import Closed, Link


class Scheduler:
    """The part of a scheduler process that workers meet."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "workers.sock"
        self.roster = Roster()
        self.closed: list[int] = []
        told = (lambda _message: None, lambda _engine, _before: None, self.closed.append)
        self.links = WorkerLinks(self.path, self.roster, Metrics(self.roster), WatchedTime(0.0), *told)

    def told_of(self, name: str, instance: int) -> list[int]:
        """Which connections are closed for it."""
        self.roster.add(Engine(ServeModel(name, f"file:{name}", {"gguf": name}, True, "", instance), Config(), 7, 0))
        before = list(self.closed)
        self.links.serve(instance, 0.0)
        return self.closed[len(before) :]

    def meet(self, model: str, instance: int) -> tuple[Link, bool]:
        """A worker's connection, and whether it was kept once its first words were read."""
        worker = sockets.connect(str(self.path), codec.decode_to_worker)
        fd = self.links.accept()
        worker.send(Register(model, 0, os.getpid(), PROTOCOL_VERSION, instance))
        self.links.read(fd, 0.0)
        return worker, fd in self.links


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    return Scheduler(tmp_path)


def test_a_worker_before_its_model_is_kept(scheduler: Scheduler) -> None:
    """It was turned away, and waited for the next scheduler, which never came: all streams of the model stood still for good."""
    worker, kept = scheduler.meet("tiny", 2)
    assert kept
    assert scheduler.told_of("tiny", 1) == []  # another loading of the model
    assert scheduler.told_of("tiny", 2) == []
    assert isinstance(worker.receive(), Load)


def test_a_worker_of_another_model_is_turned_away_late(scheduler: Scheduler) -> None:
    worker, kept = scheduler.meet("other", 2)
    assert kept
    (gone,) = scheduler.told_of("tiny", 2)
    assert gone not in scheduler.links
    with pytest.raises(Closed):
        worker.receive()


def test_a_worker_that_went_before_its_model_came_is_nothing(scheduler: Scheduler) -> None:
    worker, _ = scheduler.meet("tiny", 2)
    worker.close()
    assert len(scheduler.told_of("tiny", 2)) == 1
    again, kept = scheduler.meet("tiny", 2)
    assert kept and isinstance(again.receive(), Load)
