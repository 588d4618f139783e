"""A worker at the socket of a scheduler that is new: who may be its model's worker, and when."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helexa.config import Config
from helexa.metrics import Metrics
from helexa.scheduler.engine import Engine
from helexa.scheduler.process import SchedulerProcess
from helexa.scheduler.roster import Roster
from helexa.scheduler.worker_links import WorkerLinks
from helexa.watching import WatchedTime
from ipc import codec, endpoints, sockets
from ipc.leash_messages import ServeModel, Stop
from ipc.messages import PROTOCOL_VERSION, Load, Ready, Register
from ipc.sockets import Closed, Link

SERVED = [ServeModel("tiny", "file:tiny", {"gguf": "tiny"}, True, "", instance) for instance in range(1, 6)]


def worker_at(path: Path, instance: int) -> Link:
    worker = sockets.connect(str(path), codec.decode_to_worker)
    worker.send(Register("tiny", 0, os.getpid(), PROTOCOL_VERSION, instance))
    return worker


def test_the_supervisors_words_are_read_before_a_workers() -> None:
    """They were read one by one, beside the workers': a worker of the last of them was turned away, waited for the next scheduler, which
    never came, and all streams of its model stood still for good."""
    with tempfile.TemporaryDirectory() as name:  # short: it holds sockets
        ours, theirs = sockets.pair(codec.decode_from_child)
        process = SchedulerProcess(Config(), Path(name), Link(theirs, codec.decode_to_child))
        for served in SERVED:
            ours.send(served)
        worker = worker_at(endpoints.workers_socket(Path(name)), SERVED[-1].instance)
        loop = threading.Thread(target=process.run)
        loop.start()
        try:
            assert isinstance(worker.receive(), Load)
        finally:
            ours.send(Stop())
            loop.join()
            process.clients.close()


class Scheduler:
    """The part of a scheduler process that workers meet; it serves instance 1."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "workers.sock"
        roster = Roster()
        roster.add(Engine(SERVED[0], Config(), 7, 0))
        told = (lambda _message: None, lambda _engine, _before: None, lambda _fd: None)
        self.links = WorkerLinks(self.path, roster, Metrics(roster), WatchedTime(0.0), *told)

    def meet(self, instance: int) -> tuple[Link, bool]:
        """A worker's connection, and whether it was kept once its first words were read."""
        worker = worker_at(self.path, instance)
        fd = self.links.accept()
        self.links.read(fd, 0.0)
        return worker, fd in self.links


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with tempfile.TemporaryDirectory() as name:
        yield Scheduler(Path(name))


def test_a_second_worker_is_turned_away(scheduler: Scheduler) -> None:
    """While the first is there, whoever it is; and one of a model that nobody has named."""
    first, _ = scheduler.meet(1)
    for instance in (1, 2):
        stranger, kept = scheduler.meet(instance)
        assert not kept
        with pytest.raises(Closed):
            stranger.receive()
    assert isinstance(first.receive(), Load)


def test_the_next_worker_comes_before_the_death_of_the_last_is_noticed(scheduler: Scheduler) -> None:
    """Its last words lie unread, and its end behind them."""
    last, _ = scheduler.meet(1)
    last.send(Ready(1))
    last.close()
    following, kept = scheduler.meet(1)
    assert kept and isinstance(following.receive(), Load)
