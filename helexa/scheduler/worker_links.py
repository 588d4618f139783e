"""The scheduler's connections to device workers: who registered, whose step runs, who is silent.

What messages mean is the engines'; here they are moved, and a step is granted to one model at a time. A worker has a connection for each
of its ranks, and is lost with any of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from helexa.metrics import Metrics
from helexa.scheduler.device_share import DeviceShare
from helexa.scheduler.engine import Engine
from helexa.scheduler.rank_group import RankGroup, recipients
from helexa.scheduler.roster import Roster
from helexa.scheduler.settings import memory_limit
from helexa.watching import Silence, WatchedTime
from ipc import codec, messages, sockets
from ipc.codec import BadMessage
from ipc.leash_messages import EndWorker
from ipc.sockets import Closed, Link

log = logging.getLogger("scheduler")


@dataclass
class _Worker:
    """A model's worker: its ranks, and their connections by rank; whole once all have registered. `planned_at`: when the plan or the
    step before was, in seconds. `faulted`: one of them has said its last word."""

    engine: Engine
    ranks: RankGroup
    links: dict[int, Link] = field(default_factory=dict)
    planned_at: float | None = None
    faulted: bool = False

    @property
    def is_whole(self) -> bool:
        return len(self.links) == self.engine.ranks

    @property
    def pids(self) -> list[int]:
        """By rank."""
        return [link.peer_pid() for _, link in sorted(self.links.items())]

    def send(self, message: messages.ToWorker) -> None:
        """Raises Closed where a rank is gone; others may have been told then."""
        for rank in recipients(message, self.engine.ranks):
            self.links[rank].send(message)


@dataclass
class _Connection:
    """`worker` None: its first words have not come."""

    link: Link
    worker: _Worker | None = None
    rank: int = 0


class WorkerLinks:
    """`tell` goes to the supervisor; `after` is called once an engine has taken a worker's message or lost its worker, with its
    state before, and `closing` with the descriptor of each connection that is about to be closed; `now` in seconds, monotonic."""

    def __init__(
        self,
        path: Path,
        roster: Roster,
        metrics: Metrics,
        watched: WatchedTime,
        tell: Callable[[msgspec.Struct], None],
        after: Callable[[Engine, str], None],
        closing: Callable[[int], None],
    ) -> None:
        self._listener = sockets.listen(str(path))
        self._roster = roster
        self._metrics = metrics
        self._watched = watched
        self._tell = tell
        self._after = after
        self._closing = closing
        self._connections: dict[int, _Connection] = {}
        self._workers: dict[int, _Worker] = {}  # by instance
        self._late = Silence()  # workers that owe an answer, by instance
        self._share = DeviceShare()

    def fileno(self) -> int:
        return self._listener.fileno()

    def __contains__(self, fd: int) -> bool:
        return fd in self._connections

    def accept(self) -> int:
        """The descriptor of a new connection."""
        connection, _ = self._listener.accept()
        link = Link(connection, codec.decode_from_worker, codec.MAX_TO_WORKER_BYTES)
        self._connections[link.fileno()] = _Connection(link)
        return link.fileno()

    def read(self, fd: int, now: float) -> None:
        """One message, or the end of the connection."""
        connection = self._connections[fd]
        try:
            message = connection.link.receive()
            if isinstance(message, messages.Register):
                self._register(connection, message, now)
            elif connection.worker is not None:
                self._take(connection.worker, connection.rank, message, now)
        except BadMessage as error:
            log.error("a worker sent what is no message: %s", error)
            self._drop(fd, now, f"it sent what is no message: {error}")
        except Closed:
            self._drop(fd, now)

    def _register(self, connection: _Connection, message: messages.Register, now: float) -> None:
        """The engine hears of its worker once all ranks are there. The model is known: the supervisor names it before it tells a worker
        of this scheduler. A rank that has left its former connection, or died, may not have been missed yet."""
        if connection.worker is not None:
            raise BadMessage("a second Register")
        engine = self._roster.get(message.instance)
        worker = self._workers.get(message.instance)
        former = worker.links.get(message.rank) if worker is not None else None
        known = engine is not None and engine.name == message.model and 0 <= message.rank < engine.ranks
        mine = message.protocol == messages.PROTOCOL_VERSION and message.pid == connection.link.peer_pid()
        if engine is None or not known or not mine or (former is not None and not former.is_left()):
            log.error("a worker of %s (rank %d, pid %d) is not expected here", message.model, message.rank, message.pid)
            raise Closed("not expected")
        if worker is not None and former is not None:
            self._lose(worker, now)
            worker = None
        if worker is None:
            worker = self._workers[message.instance] = _Worker(engine, RankGroup(engine.ranks, memory_limit(engine.config)))
            self._expect_answer(worker, now)
        connection.worker, connection.rank = worker, message.rank
        worker.links[message.rank] = connection.link
        if worker.is_whole:
            self._late.forget(str(engine.instance))
            for answer in engine.on_register(self._roster.promised_bytes(besides=engine), worker.pids):
                worker.send(answer)

    def _take(self, worker: _Worker, rank: int, message: object, now: float) -> None:
        engine, before = worker.engine, worker.engine.state
        said = worker.ranks.take(rank, message)
        if isinstance(said, messages.Result):
            self._heard(worker, said, now)
        elif isinstance(said, messages.Fault):
            worker.faulted = True
            log.error("the worker of %s ends by a %s fault: %s", engine.name, said.kind, said.message)
        for answer in [said] if isinstance(said, messages.Join) else engine.on_message(said, now):
            worker.send(answer)
        self._after(engine, before)

    def _heard(self, worker: _Worker, result: messages.Result, now: float) -> None:
        """A worker owes another answer unless that was the last."""
        if worker.planned_at is not None:
            self._metrics.step_seconds.labels(worker.engine.name).observe(now - worker.planned_at)
        worker.planned_at = None if result.last else now
        if result.last:
            self._late.forget(str(worker.engine.instance))
            self._share.returned(worker.engine.instance, result.milliseconds)
        else:
            self._expect_answer(worker, now)

    def _expect_answer(self, worker: _Worker, now: float) -> None:
        patience = worker.engine.config.watch.step_s
        self._late.expect(str(worker.engine.instance), patience, self._watched.at(now))

    def plan(self, now: float) -> None:
        """Sends a step to whose turn it is."""
        for instance in self._share.order(instance for instance, worker in self._workers.items() if worker.is_whole):
            worker = self._workers[instance]
            plan = worker.engine.plan_step(now)
            if plan is None:
                if not worker.engine.has_work:
                    self._share.idle(instance)
                continue
            worker.planned_at = now
            self._share.granted(instance)
            self._expect_answer(worker, now)
            self._send(worker, plan, now)
            return

    def call_back(self, now: float) -> None:
        """A worker that runs several steps by itself is called back when somebody waits, or its sequence has ended."""
        worker = self._workers.get(self._share.busy) if self._share.busy is not None else None
        if worker is None or worker.engine.scheduler is None:
            return
        others = [other.engine for other in self._workers.values() if other is not worker]
        wanted = any(engine.state == "ready" and engine.has_work for engine in others)
        if worker.engine.scheduler.wants_worker_back(device_wanted=wanted):
            self._send(worker, messages.Yield(worker.engine.scheduler.incarnation), now)

    def _send(self, worker: _Worker, message: messages.ToWorker, now: float) -> None:
        try:
            worker.send(message)
        except Closed:
            self._lose(worker, now)

    def watch(self, now: float) -> None:
        """A worker that does not answer is ended by the supervisor; it could not hear a word of ours."""
        for instance in self._late.overdue(self._watched.at(now)):
            worker = self._workers[int(instance)]
            engine = worker.engine
            step_s = engine.config.watch.step_s
            if worker.is_whole:
                error = f"the worker of {engine.name} has not answered a step for {step_s:g} s (a hang)"
                engine.on_worker_hung(error)
            else:
                error = (
                    f"{len(worker.links)} of {engine.ranks} ranks of {engine.name} have waited for the others for {step_s:g} s"
                )
            log.error("%s; it is ended", error)
            self._tell(EndWorker(engine.name, worker.pids, error))

    def disconnect(self, instance: int) -> None:
        """A model is not served any more: its worker is left to the supervisor."""
        if instance in self._workers:
            self._forget(self._workers[instance])

    def _drop(self, fd: int, now: float, error: str = "") -> None:
        """A connection is over, and with it its worker, all ranks of it."""
        worker = self._connections[fd].worker
        if worker is not None:
            self._lose(worker, now, error)
        else:
            self._close(fd)

    def _lose(self, worker: _Worker, now: float, error: str = "") -> None:
        """Whatever lives of it is ended by the supervisor, unless it ends by itself, after a fault: it would wait for ever."""
        engine, was_whole = worker.engine, worker.is_whole
        self._hear_faults(worker, now)
        if not worker.faulted:
            self._tell(EndWorker(engine.name, worker.pids, error))
        self._forget(worker)
        if not was_whole:  # the engine has not heard of it
            return
        running = len(engine.scheduler.running) if engine.scheduler else 0
        log.warning("the worker of %s is gone; %d sequences wait for the next", engine.name, running)
        before = engine.state
        engine.on_worker_lost(now)
        self._after(engine, before)

    def _hear_faults(self, worker: _Worker, now: float) -> None:
        """A rank that faults says so, then the others leave: their ends may be noticed before its words."""
        for rank, link in list(worker.links.items()):
            with contextlib.suppress(Closed, BadMessage):
                while link.has_message():
                    message = link.receive()
                    if isinstance(message, messages.Fault):
                        self._take(worker, rank, message, now)

    def _forget(self, worker: _Worker) -> None:
        instance = worker.engine.instance
        del self._workers[instance]
        self._late.forget(str(instance))
        self._share.returned(instance, 0.0)
        for fd in [fd for fd, connection in self._connections.items() if connection.worker is worker]:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._closing(fd)
        self._connections.pop(fd).link.close()
