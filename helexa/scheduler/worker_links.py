"""The scheduler's connections to device workers: who registered, whose step runs, who is silent.

What messages mean is the engines'; here they are moved, and a step is granted to one model at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from helexa.metrics import Metrics
from helexa.scheduler.device_share import DeviceShare
from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import Roster
from helexa.watching import Silence, WatchedTime
from ipc import codec, leash_messages, messages, sockets
from ipc.codec import BadMessage
from ipc.sockets import Closed, Link

log = logging.getLogger("scheduler")


@dataclass
class _Connection:
    """`engine` None: its first words have not come, or they came before the supervisor's about its model, which are kept as
    `early`. `planned_at`: when the plan or the step before was, in seconds."""

    link: Link
    engine: Engine | None = None
    early: messages.Register | None = None
    planned_at: float | None = None


class WorkerLinks:
    """`tell` goes to the supervisor; `after` is called once an engine has taken a worker's message or lost its worker, with its
    state before; `now` in seconds, monotonic."""

    def __init__(
        self,
        path: Path,
        roster: Roster,
        metrics: Metrics,
        watched: WatchedTime,
        tell: Callable[[msgspec.Struct], None],
        after: Callable[[Engine, str], None],
    ) -> None:
        self._listener = sockets.listen(str(path))
        self._roster = roster
        self._metrics = metrics
        self._watched = watched
        self._tell = tell
        self._after = after
        self._connections: dict[int, _Connection] = {}
        self._steps = Silence()  # of workers that compute, by instance
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

    def read(self, fd: int, now: float, step_s: float) -> bool:
        """One message; False when the connection is gone. `step_s`: how long a step may take."""
        connection = self._connections[fd]
        try:
            message = connection.link.receive()
            if isinstance(message, messages.Register):
                self._register(connection, message)
            elif connection.engine is not None:
                self._take(connection, connection.engine, message, now, step_s)
        except (Closed, BadMessage) as error:
            if isinstance(error, BadMessage):
                log.error("a worker sent what is no message: %s", error)
            self._lose(fd, now)
            return False
        return True

    def serve(self, instance: int, now: float) -> list[int]:
        """The supervisor has told of this model; a worker of it may have been here before. Returns the descriptors of connections
        that turned out gone."""
        gone = []
        for fd, connection in list(self._connections.items()):
            if connection.early is not None and connection.early.instance == instance:
                message, connection.early = connection.early, None
                try:
                    self._register(connection, message)
                except Closed:
                    self._lose(fd, now)
                    gone.append(fd)
        return gone

    def _register(self, connection: _Connection, message: messages.Register) -> None:
        engine = self._roster.get(message.instance)
        known = engine is not None and any(other.engine is engine for other in self._connections.values())
        wrong = (engine is not None and engine.name != message.model) or message.protocol != messages.PROTOCOL_VERSION
        if wrong or known or message.pid != connection.link.peer_pid():
            log.error("a worker of %s (pid %d) is not expected here", message.model, message.pid)
            raise Closed("not expected")
        if engine is None:
            connection.early = message
            return
        connection.engine = engine
        for answer in engine.on_register(self._roster.promised_bytes(besides=engine)):
            connection.link.send(answer)

    def _take(self, connection: _Connection, engine: Engine, message: object, now: float, step_s: float) -> None:
        before = engine.state
        if isinstance(message, messages.Result):
            self._heard(connection, engine, message, now, step_s)
        elif isinstance(message, messages.Fault):
            log.error("the worker of %s ends by a %s fault: %s", engine.name, message.kind, message.message)
        for answer in engine.on_message(message, now):
            connection.link.send(answer)
        self._after(engine, before)

    def _heard(self, connection: _Connection, engine: Engine, result: messages.Result, now: float, step_s: float) -> None:
        """A worker owes another answer unless that was the last."""
        if connection.planned_at is not None:
            self._metrics.step_seconds.labels(engine.name).observe(now - connection.planned_at)
        connection.planned_at = None if result.last else now
        if result.last:
            self._steps.forget(str(engine.instance))
            self._share.returned(engine.instance, result.milliseconds)
        else:
            self._steps.expect(str(engine.instance), step_s, self._watched.at(now))

    def plan(self, now: float, step_s: float) -> list[int]:
        """Sends a step to whose turn it is; returns the descriptors of connections that turned out gone."""
        by_instance = {item.engine.instance: fd for fd, item in self._connections.items() if item.engine is not None}
        for instance in self._share.order(by_instance):
            connection = self._connections[by_instance[instance]]
            assert connection.engine is not None
            plan = connection.engine.plan_step(now)
            if plan is None:
                if not connection.engine.has_work:
                    self._share.idle(instance)
                continue
            connection.planned_at = now
            self._share.granted(instance)
            self._steps.expect(str(instance), step_s, self._watched.at(now))
            return self._send(by_instance[instance], plan, now)
        return []

    def call_back(self, now: float) -> list[int]:
        """A worker that runs several steps by itself is called back when somebody waits, or its sequence has ended; returns the
        descriptors of connections that turned out gone."""
        connection = next(((fd, item) for fd, item in self._connections.items() if self._runs(item)), None)
        if connection is None:
            return []
        fd, item = connection
        assert item.engine is not None and item.engine.scheduler is not None
        others = [other.engine for other in self._connections.values() if other.engine not in (None, item.engine)]
        wanted = any(engine is not None and engine.state == "ready" and engine.has_work for engine in others)
        if not item.engine.scheduler.wants_worker_back(device_wanted=wanted):
            return []
        return self._send(fd, messages.Yield(item.engine.scheduler.incarnation), now)

    def _runs(self, connection: _Connection) -> bool:
        engine = connection.engine
        return engine is not None and engine.scheduler is not None and engine.instance == self._share.busy

    def _send(self, fd: int, message: msgspec.Struct, now: float) -> list[int]:
        try:
            self._connections[fd].link.send(message)
        except Closed:
            self._lose(fd, now)
            return [fd]
        return []

    def watch(self, now: float, step_s: float) -> None:
        """A worker that does not answer is ended by the supervisor; it could not hear a word of ours."""
        for name in self._steps.overdue(self._watched.at(now)):
            connection = next(item for item in self._connections.values() if item.engine and str(item.engine.instance) == name)
            engine = connection.engine
            assert engine is not None
            error = f"the worker of {engine.name} has not answered a step for {step_s:g} s (a hang)"
            log.error("%s; it is ended", error)
            engine.on_worker_hung(error)
            self._tell(leash_messages.WorkerHung(engine.name, connection.link.peer_pid(), error))

    def disconnect(self, instance: int) -> int | None:
        """A model is not served any more: its worker is left to the supervisor. Returns the descriptor it had."""
        for fd, connection in self._connections.items():
            if connection.engine is not None and connection.engine.instance == instance:
                self._forget(fd)
                return fd
        return None

    def _lose(self, fd: int, now: float) -> None:
        engine = self._forget(fd)
        if engine is None:
            return
        running = len(engine.scheduler.running) if engine.scheduler else 0
        log.warning("the worker of %s is gone; %d sequences wait for the next", engine.name, running)
        before = engine.state
        engine.on_worker_lost(now)
        self._after(engine, before)

    def _forget(self, fd: int) -> Engine | None:
        connection = self._connections.pop(fd)
        connection.link.close()
        if connection.engine is not None:
            self._steps.forget(str(connection.engine.instance))
            self._share.returned(connection.engine.instance, 0.0)
        return connection.engine
