"""The device worker: `python -P -m workers.process`. The one file of a worker that touches sockets and clocks.

It lives on its supervisor's leash and talks to one scheduler at a time. A lost scheduler costs nothing: the weights stay, and
the next connection starts with empty seats. A lost leash ends the worker.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from helexa import __version__, logs
from helexa.errors import HelexaError, ModelFileError
from helexa.formats import fault_spec
from helexa.formats.end_tokens import end_token_ids
from helexa.formats.fault_spec import FaultSpec
from helexa.formats.fingerprint import fingerprint
from helexa.formats.gguf import GGUFFile
from ipc import sockets
from ipc.codec import BadMessage, decode_to_child, decode_to_worker
from ipc.leash_messages import Beat, LastWords, LogLevel, SchedulerUp, Stop
from ipc.messages import PROTOCOL_VERSION, AllocateKV, Fault, Load, Loaded, Plan, Ready, Register
from ipc.sockets import Closed, Link
from workers import machine, recording
from workers.faults import Faults, FaultyOps
from workers.ops.choice import choose_ops
from workers.ops.protocol import Ops
from workers.runner import Runner, next_plan
from workers.seats import PlanError

log = logging.getLogger("worker")
ROOT = Path("/")


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


class Worker:
    def __init__(self, arguments: Arguments, leash: Link) -> None:
        self.arguments = arguments
        self.leash = leash
        self.link: Link | None = None
        self.loaded: tuple[Load, Loaded, Runner] | None = None
        self.faults = Faults(arguments.fault) if arguments.fault is not None else None

    def run(self) -> None:
        """Until the supervisor says Stop or is gone."""
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
            elif self.link is not None and self.link.fileno() in ready:
                try:
                    self._serve(self.link)
                except Closed:
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

    def _serve(self, link: Link) -> None:
        message = link.receive()
        try:
            if isinstance(message, Load):
                link.send(self._load(message))
            elif isinstance(message, AllocateKV):
                link.send(Ready(self._runner().allocate(message.blocks, message.seats)))
            elif isinstance(message, Plan):
                self._run_plan(link, message)
        except Closed:
            raise
        except Exception as error:
            fault = classified(error)
            log.error("%s fault: %s", fault.kind, fault.message, exc_info=error if fault.kind == "device" else None)
            link.send(Fault(fault.kind, fault.message))
            raise fault from None

    def _runner(self) -> Runner:
        if self.loaded is None:
            raise WorkerFault("plan", "nothing is loaded")
        return self.loaded[2]

    def _load(self, message: Load) -> Loaded:
        if self.loaded is not None and self.loaded[0] == message:
            return self.loaded[1]
        self.loaded = None
        started = time.monotonic()
        threads = machine.threads(ROOT, os.sched_getaffinity(0), message.threads)
        limit = machine.memory_limit(ROOT, machine.own_bytes(ROOT), message.memory_limit)
        try:
            ops = choose_ops(message.ops, threads.count, message.max_step_tokens, message.max_seats)
            path = Path(message.files["gguf"])
            file = GGUFFile.open(path)
            end_ids = end_token_ids(file.metadata)
            if self.faults is not None:
                ops = FaultyOps(ops, self.faults)
            runner = Runner(file, ops, message.context, end_ids, message.max_step_tokens, message.max_seats)
            prices = runner.measure_prices(time.perf_counter)
            decode_position_ms, prompt_position_ms = runner.measure_positions(time.perf_counter)
        except (HelexaError, KeyError) as error:
            text = error.message if isinstance(error, HelexaError) else f"no file for {error}"
            raise WorkerFault("load", text) from None
        used = machine.own_bytes(ROOT)
        loaded = Loaded(
            free_bytes=max(0, limit.bytes - used),
            memory_note=limit.note,
            weight_bytes=used,
            bytes_per_block=runner.bytes_per_block(),
            context=runner.context,
            vocab=runner.model.vocab,
            eos_ids=end_ids,
            prices=prices,
            logit_row_ms=runner.measure_logit_row(time.perf_counter),
            decode_position_ms=decode_position_ms,
            prompt_position_ms=prompt_position_ms,
            ops=ops.name,
            threads_note=threads.note,
            remedy=ops.remedy,
            fingerprint=system_fingerprint(path, ops),
            load_seconds=time.monotonic() - started,
        )
        self.loaded = (message, loaded, runner)
        return loaded

    def _run_plan(self, link: Link, plan: Plan) -> None:
        """A plan's steps; more than one only while nothing else is asked and no sequence may have ended."""
        runner = self._runner()
        if self.faults is not None:
            self.faults.on_plan(plan)
        for substep in range(max(1, plan.repeat)):
            before = recording.histories(plan, runner) if self.arguments.record_plans else {}
            output = runner.step(plan, substep, time.perf_counter)
            if self.arguments.record_plans and self.loaded is not None:
                recording.write(self.arguments.record_plans, self.loaded[0], plan, substep, before, output.result)
            interrupted = output.may_end or bool(select.select([link, self.leash], [], [], 0)[0])
            output.result.last = output.result.last or interrupted
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


def system_fingerprint(path: Path, ops: Ops) -> str:
    """Names build, model file, op set and machine type."""
    try:
        model = fingerprint(path)
    except ModelFileError as error:
        raise WorkerFault("load", error.message) from None
    parts = [__version__, model, ops.kind, platform.machine(), machine.cpu_model(ROOT)]
    return f"hx_{blake2b('|'.join(parts).encode(), digest_size=8).hexdigest()}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="workers.process", description="A device worker; the supervisor starts it.")
    parser.add_argument("--leash-fd", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--instance", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
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
    arguments = Arguments(*given, instance=options.instance)
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
