"""A worker of several ranks at the scheduler's real sockets: ranks are played by scripts, one connection each."""

from __future__ import annotations

import os
import select
from pathlib import Path

import msgspec
import pytest
from engine_driver import CLIENT, LOADED, generate

from helexa.config_tables import Config, Devices, Watch
from helexa.metrics import Metrics
from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import Roster
from helexa.scheduler.worker_links import WorkerLinks
from helexa.watching import WatchedTime
from ipc import codec, sockets
from ipc.leash_messages import EndWorker, ServeModel
from ipc.messages import (
    PROTOCOL_VERSION,
    AllocateKV,
    Exported,
    Fault,
    Join,
    Load,
    Plan,
    Ready,
    Register,
    Result,
    SharedHandle,
    Yield,
)
from ipc.sockets import Closed, Link

STEP_S = 2.0


class Scheduler:
    """The part of a scheduler process that workers meet; it serves one model, whose worker has `ranks`."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.path = folder / "workers.sock"
        self.roster = Roster()
        self.told: list[msgspec.Struct] = []
        self.now = 0.0
        config = Config(devices=Devices(tensor_parallel=ranks), watch=Watch(step_s=STEP_S))
        self.engine = Engine(ServeModel("tiny", "file:tiny", {"gguf": "tiny"}, was_ready=True), config, 7, 0)
        self.roster.add(self.engine)
        self.watched = WatchedTime(0.0)
        self.fds: set[int] = set()
        self.fd_of: dict[int, int] = {}  # by rank
        self.ranks: list[Link] = []  # that live, whether or not a test looks at them
        told = (self.told.append, lambda _engine, _before: None, self.fds.remove)
        self.links = WorkerLinks(self.path, self.roster, Metrics(self.roster), self.watched, *told)

    def connect(self, rank: int, ranks_pid: int | None = None) -> Link:
        link = sockets.connect(str(self.path), codec.decode_to_worker)
        self.ranks.append(link)
        self.fd_of[rank] = self.links.accept()
        self.fds.add(self.fd_of[rank])
        link.send(Register("tiny", rank, ranks_pid or os.getpid(), PROTOCOL_VERSION))
        self.read()
        return link

    def read(self) -> None:
        """All that ranks have said, and their ends."""
        while ready := select.select(self.fds, [], [], 0)[0]:
            for fd in ready:
                if fd in self.links:
                    self.links.read(fd, self.now)

    def wait(self, seconds: float) -> None:
        """So much watched time goes by."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self.watched.at(self.now)
        self.links.watch(self.now)


def heard(link: Link) -> object:
    """What a rank has been told, or None."""
    return link.receive() if select.select([link], [], [], 0)[0] else None


def make_ready(scheduler: Scheduler, ranks: int) -> list[Link]:
    links = [scheduler.connect(rank) for rank in range(ranks)]
    for answer, expected in ((Exported([]), Load), (LOADED, Join), (Ready(1), AllocateKV)):
        for link in links:
            assert isinstance(heard(link), expected)
            link.send(answer)
        scheduler.read()
    assert scheduler.engine.state == "ready"
    return links


def result(plan: Plan, last: bool = True) -> Result:
    drawn = [seat for seat, samples in zip(plan.seats, plan.samples, strict=True) if samples]
    return Result(plan.incarnation, plan.step, 0, last, drawn, [5] * len(drawn), {}, {}, 1.0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_worker_is_there_when_all_its_ranks_are(tmp_path: Path, ranks: int) -> None:
    """Nothing is asked before; then Load, Join and AllocateKV, each once all have answered the one before. The status has all pids."""
    scheduler = Scheduler(tmp_path, ranks)
    links = [scheduler.connect(rank) for rank in reversed(range(1, ranks))]
    assert [heard(link) for link in links] == [None] * (ranks - 1) and scheduler.engine.pids == []
    links = [scheduler.connect(0), *reversed(links)]
    assert {heard(link).ranks for link in links} == {ranks}  # type: ignore[attr-defined]
    assert scheduler.engine.pids == [os.getpid()] * ranks
    for rank, link in enumerate(links):
        assert heard(links[0]) is None
        link.send(Exported([SharedHandle(bytes([rank]), 0, [1], "float32")]))
        scheduler.read()
    for link in links:
        join = heard(link)
        assert isinstance(join, Join) and [one[0].allocation for one in join.handles] == [bytes([rank]) for rank in range(ranks)]
        link.send(msgspec.structs.replace(LOADED, free_bytes=64 * ranks * LOADED.bytes_per_block))
    scheduler.read()
    for link in links:
        allocate = heard(link)
        assert isinstance(allocate, AllocateKV) and allocate.blocks == 64
        assert scheduler.engine.state == "restarting"
        link.send(Ready(1))
        scheduler.read()
    assert scheduler.engine.state == "ready"


def test_a_step_goes_to_all_ranks_and_comes_back_from_rank_0(tmp_path: Path) -> None:
    """The call back from a run of several steps goes to rank 0 alone."""
    scheduler = Scheduler(tmp_path, 2)
    links = make_ready(scheduler, 2)
    scheduler.engine.handle(CLIENT, generate("a", [5, 6, 7]), 0.0)
    scheduler.links.plan(0.0)
    plans = [heard(link) for link in links]
    assert isinstance(plans[0], Plan) and plans[0] == plans[1]
    links[0].send(result(plans[0]))
    scheduler.read()
    scheduler.links.plan(0.0)
    plan = heard(links[0])
    assert isinstance(plan, Plan) and plan.repeat > 1 and heard(links[1]) == plan
    scheduler.engine.handle(CLIENT, generate("b", [5, 6, 7]), 0.0)
    scheduler.links.call_back(0.0)
    assert isinstance(heard(links[0]), Yield) and heard(links[1]) is None


@pytest.mark.parametrize("dies", [0, 1])
@pytest.mark.parametrize("last_word", [None, Fault("device", "x")])
def test_the_end_of_one_rank_is_the_worker_s(tmp_path: Path, dies: int, last_word: Fault | None) -> None:
    """The other's connection is closed, what ran waits, and goes on with the next worker, from both its ranks."""
    scheduler = Scheduler(tmp_path, 2)
    links = make_ready(scheduler, 2)
    scheduler.engine.handle(CLIENT, generate("a", [5, 6, 7]), 0.0)
    scheduler.links.plan(0.0)
    first, _ = [heard(link) for link in links]
    if last_word is not None:
        links[dies].send(last_word)
    links[dies].close()
    scheduler.read()
    assert scheduler.engine.state == "restarting" and scheduler.engine.pids == []
    assert scheduler.engine.worker == ("lost" if last_word is None else "poisoned")
    with pytest.raises(Closed):
        links[1 - dies].receive()
    again = make_ready(scheduler, 2)
    scheduler.links.plan(0.0)
    plan = heard(again[1])
    assert isinstance(plan, Plan) and isinstance(first, Plan) and plan == heard(again[0])
    assert plan.incarnation != first.incarnation and plan.ids == first.ids
    assert scheduler.told == ([EndWorker("tiny", [os.getpid()] * 2)] if last_word is None else [])


def test_a_fault_is_heard_though_another_rank_s_end_is_noticed_first(tmp_path: Path) -> None:
    """The ranks that leave for it are quicker: what is said of the worker is the fault, and it ends by itself."""
    scheduler = Scheduler(tmp_path, 3)
    links = make_ready(scheduler, 3)
    links[2].send(Fault("device", "x"))
    links[1].close()
    scheduler.links.read(scheduler.fd_of[1], 0.0)
    assert (scheduler.engine.worker, scheduler.engine.last_fault) == ("poisoned", "device fault: x")
    assert scheduler.engine.scheduler is not None and scheduler.engine.scheduler.counters.device_faults == 1
    assert scheduler.told == [] and not scheduler.fds


def test_a_rank_that_is_gone_when_it_is_told_is_the_worker_s_end(tmp_path: Path) -> None:
    """Found out by the plan itself, which the other rank may have taken: its answer comes to nobody."""
    scheduler = Scheduler(tmp_path, 3)
    links = make_ready(scheduler, 3)
    scheduler.engine.handle(CLIENT, generate("a", [5, 6, 7]), 0.0)
    links[1].close()
    scheduler.links.plan(0.0)
    assert scheduler.engine.state == "restarting"
    assert isinstance(heard(links[2]), Plan)
    for link in (links[0], links[2]):
        with pytest.raises(Closed):
            link.receive()


def test_ranks_that_wait_in_vain_for_another_are_ended(tmp_path: Path) -> None:
    """One of three never comes: the supervisor is told after as long as a step may take, and ends them all."""
    scheduler = Scheduler(tmp_path, 3)
    scheduler.connect(0)
    scheduler.connect(2)
    scheduler.wait(STEP_S)
    assert scheduler.told == []
    scheduler.wait(0.5)
    (hung,) = scheduler.told
    assert isinstance(hung, EndWorker) and hung.pids == [os.getpid()] * 2
    assert hung.error == "2 of 3 ranks of tiny have waited for the others for 2 s"


def test_a_step_that_is_not_answered_ends_the_worker(tmp_path: Path) -> None:
    """Nobody can say which rank hangs; one pid names them all to the supervisor."""
    scheduler = Scheduler(tmp_path, 2)
    make_ready(scheduler, 2)
    scheduler.engine.handle(CLIENT, generate("a", [5, 6, 7]), 0.0)
    scheduler.links.plan(0.0)
    scheduler.wait(STEP_S + 0.5)
    (hung,) = scheduler.told
    assert isinstance(hung, EndWorker) and "has not answered a step for 2 s" in hung.error
    assert scheduler.engine.worker == "hung"


def test_a_rank_that_comes_anew_has_left_its_former_connection(tmp_path: Path) -> None:
    """Whatever the order in which the two are noticed: the old worker is lost, and the new one whole when the other comes too. The
    supervisor ends what lives of the old one."""
    scheduler = Scheduler(tmp_path, 2)
    links = make_ready(scheduler, 2)
    links[1].close()
    scheduler.connect(1)
    assert scheduler.engine.state == "restarting"
    with pytest.raises(Closed):
        links[0].receive()
    assert isinstance(heard(scheduler.connect(0)), Load)


@pytest.mark.parametrize("rank", [-1, 2, 7])
def test_a_rank_that_there_is_not_is_turned_away(tmp_path: Path, rank: int) -> None:
    """As is one that says it is another process."""
    scheduler = Scheduler(tmp_path, 2)
    with pytest.raises(Closed):
        scheduler.connect(rank).receive()
    with pytest.raises(Closed):
        scheduler.connect(0, ranks_pid=1).receive()


def test_a_worker_that_talks_out_of_turn_is_ended(tmp_path: Path) -> None:
    """It lives, and would wait for ever for the next scheduler."""
    scheduler = Scheduler(tmp_path, 2)
    links = make_ready(scheduler, 2)
    scheduler.engine.handle(CLIENT, generate("a", [5, 6, 7]), 0.0)
    scheduler.links.plan(0.0)
    plan = heard(links[1])
    assert isinstance(plan, Plan)
    links[1].send(result(plan))
    scheduler.read()
    (hung,) = scheduler.told
    assert isinstance(hung, EndWorker) and "Result of rank 1" in hung.error
    assert scheduler.engine.state == "restarting"
