"""One served model, as the scheduler process sees it: its worker's messages in, messages to the worker out. Pure.

A model goes from loading to ready when its worker has registered, loaded and allocated. A lost worker makes it restarting;
what its clients asked for stays and is computed again.
"""

from __future__ import annotations

from typing import Literal

from helexa.catalogue.memory_plan import MemoryPlan, plan_memory
from helexa.config import Config
from helexa.errors import RequestError, StartError
from helexa.scheduler.admission import RETRY_AFTER_S, Limits
from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.prices import PriceTable, StepPrices
from helexa.scheduler.request_table import GivenUp
from helexa.scheduler.scheduler import Scheduler
from ipc.messages import (
    Abort,
    AllocateKV,
    Credit,
    Fault,
    FinishAck,
    Generate,
    Load,
    Loaded,
    ModelInfo,
    ModelState,
    Plan,
    Progress,
    PromptLogprobs,
    Ready,
    Result,
    RowError,
    ToWorker,
)

RequestMessage = Generate | Abort | Credit | FinishAck
WorkerState = Literal["none", "loading", "ready", "poisoned", "hung", "lost"]


class Engine:
    def __init__(
        self, name: str, source: str, files: dict[str, str], config: Config, incarnation: int, created: int, was_ready: bool
    ) -> None:
        self.name = name
        self.source = source
        self.files = files
        self.config = config
        self.created = created
        self.state: ModelState = "restarting" if was_ready else "loading"
        self.error = ""
        self.worker: WorkerState = "none"
        self.last_fault = ""  # why the last worker ended, as far as it is known
        self.scheduler: Scheduler | None = None
        self.progress: list[Progress] = []  # lines for the start-up report, taken by the process
        self._was_ready = was_ready  # under an earlier scheduler
        self._incarnation = incarnation
        self._loaded: Loaded | None = None
        self._plan: MemoryPlan | None = None
        self.refusals: list[GivenUp] = []  # resubmitted requests that turned out impossible; taken by the process
        self._held: list[tuple[bytes, RequestMessage]] = []  # of resubmitted requests, until the model is ready

    # the worker

    def on_register(self) -> list[ToWorker]:
        """A worker connected."""
        config = self.config
        self.error = ""
        self.worker = "loading"
        if self.state == "failed":
            self.state = "loading"
        limit = 0 if config.memory.limit_mib == "auto" else config.memory.limit_mib * 2**20
        seats = 64 if config.admission.seats == "auto" else config.admission.seats
        threads = 0 if config.cpu.threads == "auto" else config.cpu.threads
        return [Load(self.files, config.scheduling.step_tokens, seats, config.model.context, limit, threads, config.cpu.ops)]

    def on_message(self, message: object, now: float) -> list[ToWorker]:
        """What to send in answer. A Fault, or memory that does not suffice, makes the state `failed`."""
        if isinstance(message, Loaded):
            return self._on_loaded(message, now)
        if isinstance(message, Ready):
            self._on_ready(now)
        elif isinstance(message, Fault):
            self._on_fault(message, now)
        elif self.scheduler is not None and isinstance(message, RowError):
            self.scheduler.apply_row_error(message, now)
        elif self.scheduler is not None and isinstance(message, PromptLogprobs):
            self.scheduler.apply_prompt_logprobs(message)
        elif self.scheduler is not None and isinstance(message, Result):
            self.scheduler.apply_result(message, now)
        return []

    def _on_loaded(self, message: Loaded, now: float) -> list[ToWorker]:
        self._loaded = message
        if self._plan is None or self.scheduler is None:
            admission = self.config.admission
            try:
                self._plan = plan_memory(
                    message.free_bytes,
                    message.bytes_per_block,
                    message.context,
                    admission.seats,
                    admission.batching,
                    message.memory_note,
                    self.config.memory.kv_blocks,
                )
            except StartError as error:
                self.fail(error.message, now)
                return []
        slow = f"; {message.remedy}" if message.remedy else ""
        self.progress += [
            Progress("load", f"{self.name}, {message.weight_bytes / 2**20:.0f} MiB resident, {message.load_seconds:.1f} s"),
            Progress("ops", f"{message.ops}, threads: {message.threads_note}{slow}"),
            Progress("memory", self._plan.note),
        ]
        return [AllocateKV(self._plan.blocks, self._plan.seats)]

    def _on_ready(self, now: float) -> None:
        if self._loaded is None or self._plan is None:
            return
        if self.scheduler is None:
            limits = self._limits(self._loaded, self._plan)
            self.scheduler = Scheduler(
                limits,
                StepPrices(PriceTable(self._loaded.prices), self._loaded.logit_row_ms),
                frozenset(self._loaded.eos_ids),
                self._incarnation,
            )
        self.state, self.error, self.worker = "ready", "", "ready"
        held, self._held = self._held, []
        for client, message in held:
            try:
                self.handle(client, message, now)
            except RequestError as error:
                self.refusals.append(GivenUp(client, message.req_id, error))

    def _on_fault(self, message: Fault, now: float) -> None:
        """A worker after a fault is not to be trusted, and ends. A model that never was ready failed; one that was waits for its
        next worker."""
        self.worker, self.last_fault = "poisoned", f"{message.kind} fault: {message.message}"
        if self.scheduler is not None:
            self.scheduler.counters.device_faults += message.kind == "device"
            self.scheduler.counters.memory_faults += message.kind == "memory"
        if self.scheduler is None and not self._was_ready:
            self.fail(message.message, now)
        else:
            self.state, self.error = "restarting", message.message

    def _limits(self, loaded: Loaded, plan: MemoryPlan) -> Limits:
        config = self.config
        return Limits(
            context=loaded.context,
            vocab=loaded.vocab,
            seats=plan.seats,
            blocks=plan.blocks,
            queue_depth=config.admission.queue_depth,
            queue_wait_s=config.admission.queue_wait_s,
            queue_tokens=config.admission.queue_tokens,
            step_tokens=config.scheduling.step_tokens,
            min_step_ms=config.scheduling.min_step_ms,
            slow_client_s=config.streaming.slow_client_s,
            reserve_tokens=config.scheduling.reserve_tokens,
            cached_blocks=config.cache.prefix_mib * 2**20 // loaded.bytes_per_block,
            repeat_steps=config.scheduling.lone_steps,
        )

    def on_worker_hung(self, error: str) -> None:
        """It has not answered a step for too long, and is ended."""
        self.worker, self.last_fault = "hung", error
        if self.scheduler is not None:
            self.scheduler.counters.hangs += 1

    def on_worker_lost(self, now: float) -> None:
        if self.worker not in ("poisoned", "hung"):
            self.worker, self.last_fault = "lost", "it ended without a word"
        if self.state == "ready":
            self.state = "restarting"
        if self.scheduler is not None:
            self._incarnation += 1
            self.scheduler.worker_lost(self._incarnation, now)

    def fail(self, error: str, now: float) -> None:
        """Nobody will answer: what was asked ends with the error."""
        self.state, self.error = "failed", error
        if self.scheduler is not None:
            self.scheduler.fail(error, now)
        failed = RequestError("model_failed", f"{self.name}: {error}")
        self.refusals += [GivenUp(client, item.req_id, failed) for client, item in self._held if isinstance(item, Generate)]
        self._held = []

    # clients

    def handle(self, client: bytes, message: RequestMessage, now: float) -> None:
        """Raises RequestError when a Generate is refused; ignores words about requests it does not have. While the worker is
        away, a model that was ready before still queues; one that never was holds what is resubmitted to it."""
        if self.scheduler is None:
            self._hold(client, message)
        elif isinstance(message, Generate):
            if self.state == "failed":
                raise RequestError("model_failed", f"{self.name}: {self.error}")
            self.scheduler.add(client, message, now)
        elif isinstance(message, Abort):
            self.scheduler.abort(client, message, now)
        elif isinstance(message, Credit):
            self.scheduler.credit(client, message)
        else:
            self.scheduler.acknowledge(client, message)

    def _hold(self, client: bytes, message: RequestMessage) -> None:
        if not isinstance(message, Generate):
            if any(owner == client and held.req_id == message.req_id for owner, held in self._held):
                self._held.append((client, message))
        elif self.state == "failed":
            raise RequestError("model_failed", f"{self.name}: {self.error}")
        elif message.resumed or self.state == "restarting":
            self._held.append((client, message))
        else:
            raise RequestError("model_loading", f"{self.name} is loading; try again in a moment", retry_after=RETRY_AFTER_S)

    def drop_client(self, client: bytes, now: float) -> None:
        self._held = [(owner, message) for owner, message in self._held if owner != client]
        if self.scheduler is not None:
            self.scheduler.drop_client(client, now)

    def plan_step(self, now: float) -> Plan | None:
        if self.state != "ready" or self.scheduler is None:
            return None
        return self.scheduler.plan_step(now)

    def info(self) -> ModelInfo:
        loaded, plan = self._loaded, self._plan
        return ModelInfo(
            name=self.name,
            state=self.state,
            source=self.source,
            files=self.files,
            created=self.created,
            context=min(loaded.context, plan.blocks * BLOCK_SIZE) if loaded and plan else 0,
            vocab=loaded.vocab if loaded else 0,
            seats=plan.seats if plan else 0,
            fingerprint=loaded.fingerprint if loaded else "",
            ops=loaded.ops if loaded else "",
            remedy=loaded.remedy if loaded else "",
            error=self.error,
        )
