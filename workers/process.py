"""The device worker: `python -P -m workers.process`. The one file of a worker that touches sockets and clocks.

It lives on its supervisor's leash and talks to one scheduler at a time. A lost scheduler costs nothing: the weights stay, and
the next connection starts with empty seats. A lost leash ends the worker.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from helexa import __version__, logs
from helexa.errors import HelexaError, ModelFileError
from helexa.formats import fault_spec
from helexa.formats.fault_spec import FaultSpec
from helexa.formats.fingerprint import fingerprint
from helexa.formats.model_vocabulary import end_ids_of
from ipc import sockets
from ipc.codec import BadMessage, decode_to_child, decode_to_worker
from ipc.leash_messages import Beat, LastWords, LogLevel, Progress, SchedulerUp, Stop
from ipc.messages import PROTOCOL_VERSION, AllocateKV, Fault, Load, Loaded, Plan, Ready, Register
from ipc.sockets import Closed, Link
from workers import machine, recording
from workers.faults import Faults, FaultyOps
from workers.inputs import BLOCK_SIZE
from workers.ops.choice import choose_ops
from workers.ops.protocol import Ops
from workers.runner import Runner, next_plan
from workers.seats import PlanError
from workers.weights.opening import Quantising, open_model
from workers.weights.quantised import QuantisedCheckpoint
from workers.weights.summary import load_summary

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
    device: str = "cpu"


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
                link.send(Ready(self._runner().allocate(message.blocks, message.seats, message.snapshots)))
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
            sizes = (threads.count, message.max_step_tokens, message.max_seats)
            ops = choose_ops(message.ops, *sizes, self.arguments.device)
            file = open_model(message.files, quantising_of(message), threads.count, self._report)
            end_ids = end_ids_of(file)
            if self.faults is not None:
                ops = FaultyOps(ops, self.faults)
            runner = Runner(file, ops, message.context, end_ids, message.max_step_tokens, message.max_seats)
            if isinstance(file, QuantisedCheckpoint):
                file.finish()
            prices = runner.measure_prices(time.perf_counter)
            decode_position_ms, prompt_position_ms = runner.measure_positions(time.perf_counter)
        except HelexaError as error:
            raise WorkerFault("load", error.message) from None
        used = machine.own_bytes(ROOT)
        free, memory_note = max(0, limit.bytes - used), limit.note
        if of_device := getattr(ops, "device_memory", None):
            used, free, memory_note = of_device(message.memory_limit)
        loaded = Loaded(
            free_bytes=free,
            memory_note=memory_note,
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
            fingerprint=system_fingerprint(file.files, message.quant, ops),
            load_seconds=time.monotonic() - started,
            pooling=runner.pooling,
            state_bytes=runner.state_bytes(),
        )
        kv_bytes = loaded.bytes_per_block // BLOCK_SIZE
        log.info("%s", load_summary(file, message.quant, getattr(ops, "weight_bytes", 0), kv_bytes, loaded.free_bytes))
        self.loaded = (message, loaded, runner)
        return loaded

    def _report(self, line: str) -> None:
        """A line of the start-up report; nothing where the supervisor is gone, which the loop finds out."""
        with contextlib.suppress(Closed):
            self.leash.send(Progress("load", f"{self.arguments.model}: {line}"))

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


def quantising_of(load: Load) -> Quantising:
    return Quantising(load.quant, load.quant_cache, load.quant_cache_bytes)


def system_fingerprint(paths: Sequence[Path], quant: str, ops: Ops) -> str:
    """Names build, model files, what is made of them, op set and machine type."""
    try:
        model = fingerprint(*paths)
    except ModelFileError as error:
        raise WorkerFault("load", error.message) from None
    parts = [__version__, model, quant, ops.kind, platform.machine(), machine.cpu_model(ROOT)]
    return f"hx_{blake2b('|'.join(parts).encode(), digest_size=8).hexdigest()}"


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
