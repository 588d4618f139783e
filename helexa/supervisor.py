"""The supervisor: `python -P -m helexa.supervisor`. Child of gunicorn's arbiter, parent of the scheduler and the device workers.

It holds the run directory, starts what the service consists of, restarts what dies, and ends everything when it is told to or
when the arbiter is gone. It owns no device and sees no request, so there is little that could bring it down.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from helexa import __version__, catalogue, logs
from helexa import config as configuration
from helexa.config import Config
from helexa.errors import HelexaError
from helexa.formats import fault_spec
from helexa.formats.fault_spec import FaultSpec
from helexa.processes import Child
from helexa.restarts import Restarts
from helexa.run_directory import RunDirectory
from helexa.watching import LONGEST_SLEEP_S, Silence, WatchedTime
from ipc import endpoints, installation, sockets
from ipc.codec import BadMessage, decode_from_child, decode_to_child
from ipc.messages import (
    ChildReady,
    Fetched,
    LastWords,
    ModelLost,
    ModelReady,
    Progress,
    SchedulerUp,
    ServeModel,
    Stop,
    WorkerHung,
)
from ipc.sockets import Closed, Link

log = logging.getLogger("supervisor")

START_WAIT_S = 60.0  # for a child's first word
STOP_WAIT_S = 20.0  # for children to end by themselves; then they are killed
SCHEDULER, WORKER, FETCHER = "helexa.scheduler.process", "workers.process", "helexa.catalogue.fetch_process"
# a worker's threads are its own: BLAS must not add any, and must not sum in another order for it
WORKER_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class GiveUp(Exception):
    """The service cannot go on; the text is for the person who started it."""


@dataclass
class Running:
    """A child that lives, and our end of its leash."""

    child: Child
    leash: Link
    last_words: str = ""
    ended_for: str = ""  # why we killed it


@dataclass
class Role:
    """One child that the service needs, and how often it died."""

    name: str
    module: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    restarts: Restarts = field(default_factory=Restarts)
    running: Running | None = None
    start_at: float | None = None  # seconds, monotonic


class Supervisor:
    def __init__(self, config: Config, run_directory: RunDirectory, arbiter_pid: int, arbiter: Link) -> None:
        self.config = config
        self.run_directory = run_directory
        self.arbiter = arbiter
        self.arbiter_pidfd = os.pidfd_open(arbiter_pid)
        self.started = time.monotonic()
        self.source = catalogue.parse(config.model.source, config)
        self.model = config.model.name or self.source.served_name
        self.files: dict[str, str] = {}
        self.was_ready = False
        self.serve: ServeModel | None = None
        self.watched = WatchedTime(self.started)
        self.silence = Silence()
        fault = configuration.injected_fault(config)
        self.fault: FaultSpec | None = fault_spec.parse(fault) if fault else None
        self.worker_lives = 0
        config_path = str(run_directory.write_config(config, 1))
        self.scheduler = Role("scheduler", SCHEDULER, ["--config", config_path])
        self.fetcher = Role("fetch", FETCHER, ["--config", config_path])
        self.worker = Role(
            "worker",
            WORKER,
            [
                "--endpoint",
                str(endpoints.workers_socket(run_directory.path)),
                "--model",
                self.model,
                "--log-level",
                config.logging.level,
                "--log-format",
                config.logging.format,
                *(["--record-plans", config.debug.record_plans] if config.debug.record_plans else []),
            ],
            WORKER_ENVIRONMENT,
        )
        self.roles = [self.scheduler, self.fetcher, self.worker]

    # the loop

    def run(self) -> None:
        """Until the arbiter says Stop or dies. Raises GiveUp."""
        self._start(self.scheduler)
        while True:
            watched: dict[int, Callable[[], bool]] = {
                self.arbiter.fileno(): self._arbiter_spoke,
                self.arbiter_pidfd: lambda: False,
            }
            for role in self.roles:
                if role.running is not None:
                    watched[role.running.leash.fileno()] = partial(self._child_spoke, role)
                    watched[role.running.child.pidfd] = partial(self._child_died, role)
            poller = select.poll()
            for fd in watched:
                poller.register(fd, select.POLLIN)
            ready = poller.poll(self._timeout_ms())
            self.watched.at(time.monotonic())
            for fd, _ in ready:
                if not watched[fd]():
                    return
            self._end_silent()
            self._start_due()

    def _timeout_ms(self) -> float:
        due = [role.start_at - time.monotonic() for role in self.roles if role.start_at is not None]
        return max(0.0, min([*due, LONGEST_SLEEP_S])) * 1e3 + 1

    def _end_silent(self) -> None:
        """A scheduler or worker that has stopped saying that it runs (it was stopped itself, or cannot) is killed: its death is
        then handled as any other."""
        late = self.silence.overdue(self.watched.at(time.monotonic()))
        for role in self.roles:
            if role.running is not None and role.name in late:
                self._end(role.running, f"silent for {self.config.watch.heartbeat_s:g} s, and was killed")

    def _end(self, running: Running, reason: str) -> None:
        running.ended_for = reason
        running.child.kill()

    def _start_due(self) -> None:
        now = time.monotonic()
        for role in self.roles:
            if role.start_at is not None and role.start_at <= now:
                self._start(role)

    def _start(self, role: Role) -> None:
        leash, theirs = sockets.pair(decode_from_child)
        arguments = [*role.arguments, *(self._fault_arguments() if role is self.worker else [])]
        child = Child(role.module, arguments, theirs, configuration.child_environment(role.environment), role is self.fetcher)
        role.running, role.start_at = Running(child, leash), None
        if role is not self.fetcher:
            self.silence.expect(role.name, START_WAIT_S, self.watched.at(time.monotonic()))
        log.debug("started %s (pid %d)", role.name, child.pid)
        if role is self.worker:
            leash.send(SchedulerUp())

    def _fault_arguments(self) -> list[str]:
        """What a worker is told to do wrong, for as many lives as were asked for."""
        self.worker_lives += 1
        if self.fault is None or self.worker_lives > self.fault.lives:
            return []
        return ["--fault", configuration.injected_fault(self.config)]

    # events; each returns whether to go on

    def _arbiter_spoke(self) -> bool:
        try:
            return not isinstance(self.arbiter.receive(), Stop)
        except (Closed, BadMessage):
            return False

    def _child_spoke(self, role: Role) -> bool:
        if role.running is None:
            return True
        try:
            message = role.running.leash.receive()
        except Closed:
            return self._child_died(role)
        except BadMessage as error:
            log.error("%s sent what is no message: %s", role.name, error)
            return True
        if role is not self.fetcher:
            self.silence.expect(role.name, self.config.watch.heartbeat_s, self.watched.at(time.monotonic()))
        if isinstance(message, Progress):
            self._report(message.phase, message.note)
        elif isinstance(message, LastWords):
            role.running.last_words = message.message
        elif isinstance(message, ChildReady) and role is self.scheduler:
            self._scheduler_up()
        elif isinstance(message, Fetched):
            self._fetched(message)
        elif isinstance(message, ModelReady):
            self._model_ready()
        elif isinstance(message, WorkerHung):
            if self.worker.running is not None and self.worker.running.child.pid == message.pid:
                self._end(self.worker.running, message.error)
        elif isinstance(message, ModelLost) and not self.was_ready:
            raise GiveUp(message.error)
        return True

    def _child_died(self, role: Role) -> bool:
        """Reaps it; then the one who is needed is started again, after a while that grows, until it is too often."""
        if role.running is None:
            return True
        ended_for = role.running.ended_for
        words = self._reap(role)
        why = words or ended_for or "killed"
        if role is self.fetcher:
            if self.serve is None or not self.files:
                raise GiveUp(words or "the model could not be fetched")
            return True
        if not self.was_ready and words:
            raise GiveUp(words)
        delay = role.restarts.died(time.monotonic())
        if delay is not None:
            log.warning("the %s is gone (%s); starting another%s", role.name, why, f" in {delay:g} s" if delay else "")
            role.start_at = time.monotonic() + delay
        elif role is self.worker and self.was_ready:
            often = f"its worker died {len(role.restarts)} times in a minute; last: {why}"
            self._serve(f"{often}. Restart helexa once that is mended")
        else:
            raise GiveUp(f"the {role.name} died too often; last: {why}")
        return True

    def _reap(self, role: Role) -> str:
        """Collects a dead child and the words it left. The leash of one that only closed it is cut too, so that it ends."""
        running, role.running = role.running, None
        self.silence.forget(role.name)
        if running is None:
            return ""
        words = running.last_words
        running.child.kill()
        try:
            while True:
                message = running.leash.receive()
                words = message.message if isinstance(message, LastWords) else words
        except (Closed, BadMessage):
            pass
        running.leash.close()
        running.child.reap()
        return words

    # start-up

    def _scheduler_up(self) -> None:
        if self.serve is not None:
            self._serve("")
            if self.worker.running is not None:
                self.worker.running.leash.send(SchedulerUp())
            return
        self._serve("")
        found = catalogue.find(self.source, self.config)
        if found is not None:
            self._fetched(Fetched(found.files, f"{self.model} is in the cache ({found.bytes / 1e6:.0f} MB)"))
        else:
            self._start(self.fetcher)

    def _serve(self, error: str) -> None:
        """Tells the scheduler what is served."""
        self.serve = ServeModel(self.model, str(self.source), self.files, self.was_ready, error)
        if self.scheduler.running is not None:
            try:
                self.scheduler.running.leash.send(self.serve)
            except Closed:
                log.debug("the scheduler is gone; its successor is told")

    def _fetched(self, message: Fetched) -> None:
        self.files = message.files
        self._report("fetch", message.note)
        self._serve("")
        self._start(self.worker)

    def _model_ready(self) -> None:
        server = self.config.server
        host = f"[{server.host}]" if ":" in server.host else server.host
        if not self.was_ready:
            self._report("ready", f"http://{host}:{server.port}/v1 serves {self.model}; Ctrl-C stops")
        else:
            log.warning("%s answers again", self.model)
        self.was_ready = True

    def _report(self, phase: str, note: str) -> None:
        if self.was_ready:
            log.info("%s: %s", phase, note)
            return
        print(f"{time.monotonic() - self.started:6.1f} s  {phase:<7} {note}", file=sys.stderr, flush=True)

    # the end

    def stop(self) -> None:
        """Ends every child, first by word, then by force, and removes the run directory."""
        for role in self.roles:
            if role.running is not None:
                try:
                    role.running.leash.send(Stop())
                except Closed:
                    continue
        deadline = time.monotonic() + STOP_WAIT_S
        waiting = [role for role in self.roles if role.running is not None]
        while waiting and time.monotonic() < deadline:
            poller = select.poll()
            for role in waiting:
                assert role.running is not None
                poller.register(role.running.child.pidfd, select.POLLIN)
            ended = {fd for fd, _ in poller.poll((deadline - time.monotonic()) * 1e3)}
            for role in [role for role in waiting if role.running is not None and role.running.child.pidfd in ended]:
                self._reap(role)
            waiting = [role for role in waiting if role.running is not None]
        for role in waiting:
            log.warning("the %s did not end within %g s; killed", role.name, STOP_WAIT_S)
            self._reap(role)
        self.run_directory.remove()


def main() -> int:
    parser = argparse.ArgumentParser(prog="helexa.supervisor", description="The supervisor; gunicorn's configuration starts it.")
    parser.add_argument("--arbiter-pid", type=int, required=True)
    parser.add_argument("--leash-fd", type=int, required=True)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends by its leash alone, in order
    arbiter = sockets.from_fd(options.leash_fd, decode_to_child)
    try:
        installation.folder()
        config = configuration.from_environment()
        logs.set_up("supervisor", config.logging.level, config.logging.format)
        run_directory = RunDirectory.acquire(config)
    except (HelexaError, RuntimeError) as error:
        return _last_words(arbiter, str(error))
    print(f"helexa {__version__}: starting in {run_directory.path}", file=sys.stderr, flush=True)
    supervisor = Supervisor(config, run_directory, options.arbiter_pid, arbiter)
    arbiter.send(ChildReady(str(Path(run_directory.path))))
    try:
        supervisor.run()
    except (GiveUp, HelexaError) as error:
        supervisor.stop()
        return _last_words(arbiter, str(error))
    except Exception as error:
        log.exception("the supervisor failed")
        supervisor.stop()
        return _last_words(arbiter, f"supervisor: {type(error).__name__}: {error}")
    supervisor.stop()
    return 0


def _last_words(arbiter: Link, message: str) -> int:
    try:
        arbiter.send(LastWords(message))
    except (Closed, BadMessage):
        print(f"helexa: {message}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
