"""The supervisor: `python -P -m helexa.supervisor`. Child of gunicorn's arbiter, parent of the scheduler and the device workers.

It holds the run directory, starts what the service consists of, restarts what dies, and ends everything when it is told to or
when the arbiter is gone. What an operator wants of the service is kept here, and told to every scheduler. It owns no device and
sees no request, so there is little that could bring it down.
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
from functools import partial
from pathlib import Path

from helexa import __version__, catalogue, children, exposure, extras, logs
from helexa import config as configuration
from helexa.catalogue import starting
from helexa.catalogue.least_memory import least_memory
from helexa.child_group import ChildGroup, alone
from helexa.children import Role
from helexa.config import Config
from helexa.errors import HelexaError
from helexa.faulty_lives import FaultyLives
from helexa.listings import listings
from helexa.operating import Operating
from helexa.run_directory import RunDirectory
from helexa.served_models import ServedModel, ServedModels
from helexa.watching import LONGEST_SLEEP_S, Silence, WatchedTime
from ipc import installation, sockets
from ipc.codec import BadMessage, decode_to_child
from ipc.leash_messages import (
    ChildReady,
    Drain,
    EndWorker,
    Fetched,
    LastWords,
    LoadModel,
    ModelLost,
    ModelReady,
    OperatorAsks,
    Progress,
    Retired,
    RetireModel,
    SchedulerUp,
    Stop,
    Summon,
    UnloadModel,
)
from ipc.sockets import Closed, Link

log = logging.getLogger("supervisor")

START_WAIT_S = 30.0  # for a child's first word
SCHEDULER = "helexa.scheduler.process"


class GiveUp(Exception):
    """The service cannot go on; the text is for the person who started it."""


class Supervisor:
    def __init__(self, config: Config, run_directory: RunDirectory, arbiter_pid: int, arbiter: Link) -> None:
        self.arbiter = arbiter
        self.arbiter_pidfd = os.pidfd_open(arbiter_pid)
        self.run_directory = run_directory
        self.started = time.monotonic()
        self.was_ready = False
        self.scheduler_was_up = False
        self.scheduler_answers = False
        self.watched = WatchedTime(self.started)
        self.silence = Silence()
        self.faults = FaultyLives(configuration.injected_fault(config))
        self.models = ServedModels(run_directory.path)
        self.operating = Operating(config, run_directory, self.models, self)
        self.scheduler = alone(Role("scheduler", SCHEDULER, ["--config", self.operating.config_path]))

    @property
    def config(self) -> Config:
        return self.operating.config

    @property
    def groups(self) -> list[ChildGroup]:
        return [self.scheduler, *(group for model in self.models for group in (model.fetcher, model.worker))]

    # the loop

    def run(self) -> None:
        """Until the arbiter says Stop or dies. Raises GiveUp."""
        for listing in listings(self.config):
            self.operating.enlist(listing)
        self._start(self.scheduler)
        while True:
            watched: dict[int, Callable[[], bool]] = {
                self.arbiter.fileno(): self._arbiter_spoke,
                self.arbiter_pidfd: lambda: False,
            }
            for group in self.groups:
                for role, running in group.living():
                    watched[running.leash.fileno()] = partial(self._child_spoke, group, role)
                    watched[running.child.pidfd] = partial(self._child_died, group, role)
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
        due = [group.start_at - time.monotonic() for group in self.groups if group.start_at is not None]
        return max(0.0, min([*due, LONGEST_SLEEP_S])) * 1e3 + 1

    def _end_silent(self) -> None:
        """A scheduler or worker that has stopped saying that it runs (it was stopped itself, or cannot) is killed, and so is a
        worker that does not end though it was told to: their deaths are then handled as any other."""
        now, patience = self.watched.at(time.monotonic()), self.config.watch.heartbeat_s
        overdue = self.silence.overdue(now)
        for role, running in [living for group in self.groups for living in group.living()]:
            if role.name in overdue and running.leash.has_message():  # it spoke while we were stopped, since we last looked
                self.silence.expect(role.name, patience, now)
            elif role.name in overdue:
                running.end(f"silent for {patience:g} s, and was killed")
        for model in self.models:
            late = model.stop_at is not None and model.stop_at <= time.monotonic()
            if late and model.worker.end("it did not stop"):
                log.warning("the %s did not end within %g s; killed", model.worker.name, children.STOP_WAIT_S)

    def _start_due(self) -> None:
        now = time.monotonic()
        for group in self.groups:
            if group.start_at is not None and group.start_at <= now:
                self._start(group)

    def _start(self, group: ChildGroup) -> None:
        worker = any(group is model.worker for model in self.models)
        group.start(self.faults.next_arguments() if worker else {})
        for role in group.roles:
            if not role.silent:
                self.silence.expect(role.name, START_WAIT_S, self.watched.at(time.monotonic()))
        if worker and self.scheduler_answers:
            group.tell(SchedulerUp())

    # events; each returns whether to go on

    def _arbiter_spoke(self) -> bool:
        try:
            message = self.arbiter.receive()
        except (Closed, BadMessage):
            return False
        if isinstance(message, Drain):
            self.operating.drain()
        return not isinstance(message, Stop)

    def _child_spoke(self, group: ChildGroup, role: Role) -> bool:
        if role.running is None:
            return True
        try:
            message = role.running.leash.receive()
        except Closed:
            return self._child_died(group, role)
        except BadMessage as error:
            log.error("%s sent what is no message: %s", role.name, error)
            return True
        if not role.silent:
            self.silence.expect(role.name, self.config.watch.heartbeat_s, self.watched.at(time.monotonic()))
        if isinstance(message, Progress):
            self.report(message.phase, message.note)
        elif isinstance(message, LastWords):
            role.running.last_words = message.message
        elif isinstance(message, Fetched):
            self._fetched(next(model for model in self.models if model.fetcher is group), message)
        elif group is self.scheduler:
            self._scheduler_spoke(message)
        return True

    def _scheduler_spoke(self, message: object) -> None:
        if isinstance(message, ChildReady):
            self._scheduler_up()
        elif isinstance(message, OperatorAsks):
            self.operating.obey(message)
        elif isinstance(message, EndWorker):
            for worker in [model.worker for model in self.models]:
                if any(running.child.pid in message.pids for _, running in worker.living()):
                    worker.end(message.error)
        elif isinstance(message, ModelReady | ModelLost | Retired | LoadModel | UnloadModel):
            model = self.models.get(message.instance)
            if model is not None:
                self._model_changed(model, message)

    def _model_changed(self, model: ServedModel, message: ModelReady | ModelLost | Retired | LoadModel | UnloadModel) -> None:
        if isinstance(message, ModelReady):
            model.blocks, model.seats, model.snapshots = message.blocks, message.seats, message.snapshots
            self._model_ready(model)
        elif isinstance(message, Retired):
            self.retired(model)
        elif isinstance(message, LoadModel):
            if model.parked and not model.retiring:
                model.unseen = not model.files
                self.begin(model)
        elif isinstance(message, UnloadModel):
            self._park(model)
        elif not model.was_ready:
            self.model_failed(model, message.error)

    def _child_died(self, group: ChildGroup, role: Role) -> bool:
        """Reaps it, and ends its group; then the group that is needed is started again, after a while that grows, until it is too
        often."""
        if role.running is None:
            return True
        self.silence.forget(role.name)
        death = group.reap(role)
        if death is None:  # others of its group are still there, not for long
            return True
        why = death.words or "killed"
        model = next((model for model in self.models if group in (model.fetcher, model.worker)), None)
        if model is not None and group is model.fetcher:
            if model.stop_at is not None:
                self._worker_stopped(model)
            elif not model.files:
                self.model_failed(model, death.words or "the model could not be fetched")
            return True
        if model is not None and (model.error or model.stop_at is not None):
            self._worker_stopped(model)
            return True
        if model is None:
            self.scheduler_answers = False
        ready = self.was_ready if model is None else model.was_ready
        if not ready and death.words:  # what it said, or what we killed it for
            self._cannot_start(model, why)
            return True
        delay = group.restarts.died(time.monotonic())
        if delay is not None:
            log.warning("the %s is gone (%s); starting another%s", death.who, why, f" in {delay:g} s" if delay else "")
            group.start_at = time.monotonic() + delay
        elif model is not None and model.was_ready:
            often = f"its worker died {len(group.restarts)} times in a minute; last: {why}"
            model.error = f"{often}. Restart helexa once that is mended"
            self.scheduler.tell(model.message())
        else:
            self._cannot_start(model, f"the {group.name} died too often; last: {why}")
        return True

    def _cannot_start(self, model: ServedModel | None, why: str) -> None:
        if model is None:
            raise GiveUp(why)
        self.model_failed(model, why)

    # models

    def _scheduler_up(self) -> None:
        """A scheduler is told all that counts; the first one sets off the start of the first model."""
        self.scheduler_answers = True
        self.scheduler.tell(self.operating.settings())
        for model in self.models:
            self.scheduler.tell(model.message())
            if model.retiring:
                self.scheduler.tell(RetireModel(model.instance))
            model.worker.tell(SchedulerUp())
        if not self.scheduler_was_up:
            self.scheduler_was_up = True
            for model in self.models:
                (self.introduce if model.parked else self.begin)(model)
            if all(model.parked for model in self.models):
                self._serves(f"{', '.join(model.name for model in self.models)} on request")

    def introduce(self, model: ServedModel) -> None:
        """A parked model: what is known of it without loading it."""
        try:
            found = catalogue.find(model.source, self.config)
        except HelexaError as error:
            log.warning("%s: %s", model.name, error.message)
            found = None
        if found is not None:
            self._has_files(model, found.files)
        self.scheduler.tell(model.message())

    def _has_files(self, model: ServedModel, files: dict[str, str]) -> None:
        model.files = files
        model.need_bytes = least_memory(files, model.context, self.config)

    def begin(self, model: ServedModel) -> None:
        """Fetches the model where it is not in the cache, then starts its worker."""
        model.error, model.parked = "", False
        self.scheduler.tell(model.message())
        try:
            found = catalogue.find(model.source, self.config)
        except HelexaError as error:
            self.model_failed(model, error.message)
            return
        if found is not None:
            self._fetched(model, Fetched(found.files, f"{model.name} is in the cache ({found.bytes / 1e6:.0f} MB)"))
        else:
            self._start(model.fetcher)

    def _fetched(self, model: ServedModel, message: Fetched) -> None:
        self._has_files(model, message.files)
        self.report("fetch", message.note)
        if model.unseen:  # only now is it known how much room it takes
            model.unseen, model.parked = False, True
            self.scheduler.tell(model.message())
            self.scheduler.tell(Summon(model.instance))
            return
        self.scheduler.tell(model.message())
        try:
            starting.check(model.name, model.files, model.context, model.quant, self.config)
        except HelexaError as error:
            self.model_failed(model, error.message)
            return
        self._start(model.worker)

    def _model_ready(self, model: ServedModel) -> None:
        if not self.was_ready:
            self._serves(model.name)
        elif model.was_ready:
            log.warning("%s answers again", model.name)
        else:
            log.info("%s is ready", model.name)
        first, model.was_ready = not model.was_ready, True
        if first:
            self.operating.model_ready(model)

    def _serves(self, what: str) -> None:
        """The end of the start."""
        server = self.config.server
        host = f"[{server.host}]" if ":" in server.host else server.host
        self.report("ready", f"http://{host}:{server.port}/v1 serves {what}; Ctrl-C stops")
        self.was_ready = True

    def model_failed(self, model: ServedModel, error: str) -> None:
        """It cannot be served. The first model's failure is the end of the start; else the others go on as before, and a listed
        model is tried again on request."""
        if not self.was_ready and model is next(iter(self.models)):
            raise GiveUp(error)
        if model.error:
            return
        model.error = error
        log.error("%s: %s", model.name, error)
        swapped = self.operating.is_reloaded(model)
        self.operating.model_failed(model, error)
        if model.listed and not swapped:
            self._park(model)
        else:
            self.retire(model)

    def _park(self, model: ServedModel) -> None:
        """Its worker ends; the next one is started when somebody asks."""
        model.parking, model.was_ready, model.blocks, model.seats, model.snapshots = True, False, 0, 0, 0
        self.retired(model)

    def retire(self, model: ServedModel) -> None:
        """Nothing new goes to it; once nothing is left, `retired` follows."""
        model.retiring = True
        self.scheduler.tell(RetireModel(model.instance))

    def retired(self, model: ServedModel) -> None:
        """The scheduler has forgotten it, or what it had in memory: its worker may end."""
        for group in (model.fetcher, model.worker):
            group.start_at = None
            group.tell(Stop())
        model.stop_at = time.monotonic() + children.STOP_WAIT_S
        if not model.worker.living():
            self._worker_stopped(model)

    def _worker_stopped(self, model: ServedModel) -> None:
        if model.stop_at is None or model.fetcher.living():
            return
        if model.parking and not model.retiring:
            model.parking, model.stop_at = False, None
            model.parked = model.on_request = True
            self.scheduler.tell(model.message())
            self.operating.model_parked(model)
        else:
            self.models.remove(model)
            self.operating.model_gone(model)

    def hang_up_web(self) -> None:
        """New web workers take over; the old ones end once their streams have."""
        signal.pidfd_send_signal(self.arbiter_pidfd, signal.SIGHUP)

    def report(self, phase: str, note: str) -> None:
        if self.was_ready:
            log.info("%s: %s", phase, note)
            return
        print(f"{time.monotonic() - self.started:6.1f} s  {phase:<7} {note}", file=sys.stderr, flush=True)

    # the end

    def stop(self) -> None:
        """Ends every child and removes the run directory."""
        everybody = [role for group in self.groups for role in group.roles]
        children.stop(everybody, lambda role: log.debug("the %s has ended", role.name))
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
        extras.check(config)
        warning = exposure.check(config)
        run_directory = RunDirectory.acquire(config)
    except (HelexaError, RuntimeError) as error:
        return _last_words(arbiter, str(error))
    print(f"helexa {__version__}: starting in {run_directory.path}", file=sys.stderr, flush=True)
    if warning:
        print(warning, file=sys.stderr, flush=True)
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
