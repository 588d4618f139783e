"""The device worker: `python -P -m workers.process`. The one file of a worker that touches sockets and clocks.

It lives on its supervisor's leash and talks to one scheduler at a time. A lost scheduler costs nothing: the weights stay, and
the next connection starts with empty seats. A lost leash ends the worker.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from helexa import logs
from helexa.errors import HelexaError
from helexa.formats import fault_spec
from helexa.formats.fault_spec import FaultSpec
from ipc import sockets
from ipc.codec import BadMessage, decode_to_child, decode_to_worker
from ipc.leash_messages import Beat, LastWords, LogLevel, Progress, SchedulerUp, Stop
from ipc.messages import PROTOCOL_VERSION, AllocateKV, Exported, Fault, Join, Load, Loaded, Plan, Ready, Register, SharedHandle
from ipc.shared_array import ArrayHandle, IpcError
from ipc.sockets import Closed, Link
from workers import recording
from workers.faults import Faults
from workers.follower import Follower
from workers.group import Group, GroupLeft
from workers.loading import LoadedRank, compare_notes, load_rank, measure
from workers.runner import next_plan
from workers.seats import PlanError

log = logging.getLogger("worker")


class WorkerFault(Exception):
    """The worker cannot go on; `kind` as in messages.Fault."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass
class Arguments:
    leash_fd: int
    endpoint: str
    model: str
    rank: int
    record_plans: Path | None = None
    fault: FaultSpec | None = None
    instance: int = 1
    device: str = "cpu"


class Worker:
    def __init__(self, arguments: Arguments, leash: Link) -> None:
        self.arguments = arguments
        self.leash = leash
        self.link: Link | None = None
        self.loaded: LoadedRank | None = None
        self.faults = Faults(arguments.fault) if arguments.fault is not None else None

    def run(self) -> None:
        """Until the supervisor says Stop or is gone."""
        try:
            self._loop()
        finally:
            self._leave()

    def _loop(self) -> None:
        poller = select.poll()
        poller.register(self.leash, select.POLLIN)
        while True:
            if self.link is not None:
                poller.register(self.link, select.POLLIN)
            ready = {fd for fd, _ in poller.poll()}
            if self.leash.fileno() in ready:
                message = self.leash.receive()
                if isinstance(message, Stop):
                    return
                if isinstance(message, SchedulerUp):
                    self._connect(poller)
                elif isinstance(message, LogLevel):
                    logs.set_level(message.level)
            elif self.link is not None and self.link.fileno() in ready and not self._serves(self.link):
                self._disconnect(poller)

    def _connect(self, poller: select.poll) -> None:
        self._disconnect(poller)
        try:
            link = sockets.connect(self.arguments.endpoint, decode_to_worker)
            link.send(Register(self.arguments.model, self.arguments.rank, os.getpid(), PROTOCOL_VERSION, self.arguments.instance))
        except Closed as error:
            log.info("the scheduler is gone again (%s); waiting for the next", error)
            return
        self.link = link

    def _disconnect(self, poller: select.poll) -> None:
        if self.link is not None:
            poller.unregister(self.link)
            self.link.close()
            self.link = None
        self._leave()

    def _leave(self) -> None:
        """Other ranks of the model, wherever they wait for this one, learn that it is gone."""
        if self.loaded is not None:
            self.loaded.rank.leave()

    def _serves(self, link: Link) -> bool:
        """False where the scheduler, or the group, is gone. Names of a step that was given up hold on to what ranks share, so they go
        with this call."""
        try:
            self._serve(link)
        except Closed as error:
            log.info("the scheduler is gone (%s)", error)
            return False
        return True

    def _serve(self, link: Link) -> None:
        message = link.receive()
        try:
            if isinstance(message, Load):
                link.send(self._load(message))
            elif isinstance(message, Join):
                link.send(self._join(message))
            elif isinstance(message, AllocateKV):
                link.send(Ready(self._held().rank.allocate(message.blocks, message.seats, message.snapshots)))
            elif isinstance(message, Plan):
                self._run_plan(link, message)
        except Closed:
            raise
        except GroupLeft as error:
            raise Closed(str(error)) from None
        except Exception as error:
            fault = classified(error)
            log.error("%s fault: %s", fault.kind, fault.message, exc_info=error if fault.kind == "device" else None)
            with contextlib.suppress(Closed):  # before the other ranks learn of it: their ends are no reason
                link.send(Fault(fault.kind, fault.message))
            raise fault from None

    def _held(self) -> LoadedRank:
        if self.loaded is None:
            raise WorkerFault("plan", "nothing is loaded")
        return self.loaded

    def _load(self, message: Load) -> Loaded | Exported:
        """The weights, unless they are here; then the prices or, where there are other ranks, what they join by."""
        rank = self.arguments.rank
        try:
            if self.loaded is None or self.loaded.load != message:
                self.loaded = None
                self.loaded = load_rank(message, rank, self.arguments.device, self.faults, self._report)
            if message.ranks > 1:
                handles = self.loaded.rank.export(self.loaded.spins)
                return Exported([SharedHandle(item.allocation, item.offset, list(item.shape), item.dtype) for item in handles])
            return self._measured(self.loaded, None)
        except HelexaError as error:
            raise WorkerFault("load", error.message) from None

    def _join(self, message: Join) -> Loaded:
        loaded = self._held()
        handles = [
            [ArrayHandle(item.allocation, item.offset, tuple(item.shape), item.dtype) for item in of_rank]
            for of_rank in message.handles
        ]
        try:
            group = loaded.rank.join(handles, loaded.spins)
            compare_notes(loaded, group)
            return self._measured(loaded, group)
        except IpcError as error:  # rank 0 is gone, which the scheduler learns too
            raise Closed(str(error)) from None
        except HelexaError as error:
            raise WorkerFault("load", error.message) from None

    def _measured(self, loaded: LoadedRank, group: Group | None) -> Loaded:
        measure(loaded, group)
        return loaded.answer()

    def _report(self, line: str) -> None:
        """A line of the start-up report; nothing where the supervisor is gone, which the loop finds out."""
        with contextlib.suppress(Closed):
            self.leash.send(Progress("load", f"{self.arguments.model}: {line}"))

    def _run_plan(self, link: Link, plan: Plan) -> None:
        """A plan's steps; more than one only while nothing else is asked and no sequence may have ended."""
        loaded = self._held()
        runner = loaded.rank
        if self.faults is not None:
            self.faults.on_plan(plan)
        if isinstance(runner, Follower):
            runner.follow(plan)
            return
        for substep in range(max(1, plan.repeat)):
            before = recording.histories(plan, runner) if self.arguments.record_plans else {}
            output = runner.step(plan, substep, time.perf_counter)
            if self.arguments.record_plans:
                recording.write(self.arguments.record_plans, loaded.load, plan, substep, before, output.result)
            if not output.result.last and (output.may_end or select.select([link, self.leash], [], [], 0)[0]):
                output.result.last = True
                runner.end_early()
            for message in (*output.scored, *output.row_errors):
                link.send(message)
            link.send(output.result)
            if output.result.last:
                return
            plan = next_plan(plan)


def classified(error: Exception) -> WorkerFault:
    """What the failure of a whole step or load is: after any of them the worker's memory is not to be trusted."""
    if isinstance(error, WorkerFault):
        return error
    if isinstance(error, PlanError):
        return WorkerFault("plan", str(error))
    if isinstance(error, MemoryError):
        return WorkerFault("memory", f"out of memory ({error}); lower memory.limit_mib or admission.seats")
    return WorkerFault("device", f"{type(error).__name__}: {error}")


def beat(leash: Link, seconds: float) -> None:
    """Tells the supervisor that this process runs, until the supervisor is gone. A thread: a step may take long."""
    try:
        while True:
            leash.offer(Beat())
            time.sleep(seconds)
    except Closed:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="workers.process", description="A device worker; the supervisor starts it.")
    parser.add_argument("--leash-fd", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--instance", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--record-plans", type=Path)
    parser.add_argument("--beat-s", type=float, default=1.0)
    parser.add_argument("--fault", type=fault_spec.parse)
    parser.add_argument("--log-level", choices=sorted(logs.LEVELS), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    logs.set_up(f"worker {options.rank}", options.log_level, options.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leash = sockets.from_fd(options.leash_fd, decode_to_child)
    threading.Thread(target=beat, args=(leash, options.beat_s), name="beat", daemon=True).start()
    given = (options.leash_fd, options.endpoint, options.model, options.rank, options.record_plans, options.fault)
    arguments = Arguments(*given, instance=options.instance, device=options.device)
    worker = Worker(arguments, leash)
    try:
        worker.run()
    except Closed:
        log.warning("the supervisor is gone; ending")
        return 1
    except WorkerFault as fault:
        return _last_words(leash, f"worker of {options.model}: {fault.message}")
    except Exception as error:
        log.exception("the worker failed")
        return _last_words(leash, f"worker of {options.model}: {type(error).__name__}: {error}")
    return 0


def _last_words(leash: Link, message: str) -> int:
    try:
        leash.send(LastWords(message))
    except (Closed, BadMessage):
        log.error("%s", message)
    return 1


if __name__ == "__main__":
    sys.exit(main())
