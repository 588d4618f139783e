"""One served model, as the scheduler process sees it: its worker's messages in, messages to the worker out. Pure.

A model goes from loading to ready when its worker has registered, loaded and allocated. A lost worker makes it restarting;
what its clients asked for stays and is computed again. A paused model keeps what comes until it is resumed.
"""

from __future__ import annotations

from typing import Literal

from helexa.catalogue.memory_plan import MemoryPlan, plan_memory
from helexa.config import Config
from helexa.errors import RequestError, StartError
from helexa.scheduler.admission import RETRY_AFTER_S, Limits
from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.held import HeldRequests, RequestMessage
from helexa.scheduler.prices import PriceTable, StepPrices, UnitPrices
from helexa.scheduler.request_table import GivenUp
from helexa.scheduler.scheduler import Scheduler
from helexa.scheduler.sequence import Request
from ipc.leash_messages import ModelReady, Progress, ServeModel
from ipc.messages import (
    Abort,
    AllocateKV,
    Credit,
    Fault,
    Generate,
    Load,
    Loaded,
    ModelInfo,
    ModelState,
    Plan,
    PromptLogprobs,
    Ready,
    Result,
    RowError,
    ToWorker,
)

WorkerState = Literal["none", "loading", "ready", "poisoned", "hung", "lost"]


class Engine:
    def __init__(self, served: ServeModel, config: Config, incarnation: int, created: int) -> None:
        """`created`: seconds since the epoch."""
        self.name = served.name
        self.instance = served.instance
        self.served = served
        self.config = config
        self.created = created
        self.paused = False
        self.state: ModelState = "restarting" if served.was_ready else "loading"
        self.error = ""
        self.worker: WorkerState = "none"
        self.last_fault = ""  # why the last worker ended, as far as it is known
        self.scheduler: Scheduler | None = None
        self.progress: list[Progress] = []  # lines for the start-up report, taken by the process
        self._incarnation = incarnation
        self._loaded: Loaded | None = None
        self._plan: MemoryPlan | None = None
        self.refusals: list[GivenUp] = []  # resubmitted requests that turned out impossible; taken by the process
        self._held = HeldRequests()  # until the model is ready, or resumed
        self._taken_bytes = 0  # promised to other models

    # the worker

    def on_register(self, taken_bytes: int = 0) -> list[ToWorker]:
        """A worker connected. `taken_bytes` of memory are promised to other models."""
        config = self.config
        self._taken_bytes = taken_bytes
        self.error = ""
        self.worker = "loading"
        if self.state == "failed":
            self.state = "loading"
        limit = 0 if config.memory.limit_mib == "auto" else config.memory.limit_mib * 2**20
        seats = 64 if config.admission.seats == "auto" else config.admission.seats
        threads = 0 if config.cpu.threads == "auto" else config.cpu.threads
        context = self.served.context
        return [Load(self.served.files, config.scheduling.step_tokens, seats, context, limit, threads, config.cpu.ops)]

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
            try:
                self._plan = self._planned(message)
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

    def _planned(self, loaded: Loaded) -> MemoryPlan:
        """What the model had under an earlier scheduler, else what is left for it. Raises StartError."""
        served, admission = self.served, self.config.admission
        if served.blocks:
            return MemoryPlan(served.blocks, served.seats, f"KV cache of {served.blocks:,} blocks, as before")
        taken = self._taken_bytes
        note = f"{loaded.memory_note}, of which other models have {taken / 2**30:.1f} GiB" if taken else loaded.memory_note
        return plan_memory(
            max(0, loaded.free_bytes - taken),
            loaded.bytes_per_block,
            loaded.context,
            admission.seats,
            admission.batching,
            note,
            self.config.memory.kv_blocks,
        )

    @property
    def promised_bytes(self) -> int:
        """KV memory that the model may come to take."""
        return self._plan.blocks * self._loaded.bytes_per_block if self._plan and self._loaded else 0

    @property
    def weight_bytes(self) -> int:
        return self._loaded.weight_bytes if self._loaded else 0

    def ready_message(self) -> ModelReady:
        plan = self._plan or MemoryPlan(0, 0, "")
        return ModelReady(self.name, self.instance, plan.blocks, plan.seats)

    def _on_ready(self, now: float) -> None:
        if self._loaded is None or self._plan is None:
            return
        if self.scheduler is None:
            limits = self._limits(self._loaded, self._plan)
            self.scheduler = Scheduler(
                limits,
                _prices(self._loaded),
                frozenset(self._loaded.eos_ids),
                self._incarnation,
            )
        self.state, self.error, self.worker = "ready", "", "ready"
        self._release_held(now)

    def _on_fault(self, message: Fault, now: float) -> None:
        """A worker after a fault is not to be trusted, and ends. A model that never was ready failed; one that was waits for its
        next worker."""
        self.worker, self.last_fault = "poisoned", f"{message.kind} fault: {message.message}"
        if self.scheduler is not None:
            self.scheduler.counters.device_faults += message.kind == "device"
            self.scheduler.counters.memory_faults += message.kind == "memory"
        if self.scheduler is None and not self.served.was_ready:
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
        held = self._held.take()
        self.refusals += [GivenUp(client, item.req_id, failed) for client, item in held if isinstance(item, Generate)]

    # clients

    def handle(self, client: bytes, message: RequestMessage, now: float) -> None:
        """Raises RequestError when a Generate is refused; ignores words about requests it does not have. While the worker is
        away, a model that was ready before still queues; one that never was holds what is resubmitted to it."""
        if self.scheduler is None or self._keeps(client, message):
            self._hold(client, message, now)
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

    def _keeps(self, client: bytes, message: RequestMessage) -> bool:
        """While the model is paused: requests that never ran, and what is said about them."""
        new = isinstance(message, Generate) and not message.resumed and self.paused
        return self._held.has(client, message.req_id) or (new and not self.knows(client, message.req_id))

    def _hold(self, client: bytes, message: RequestMessage, now: float) -> None:
        if not isinstance(message, Generate):
            if self._held.has(client, message.req_id):
                self._held.add(client, message, now)
            return
        if self.state == "failed":
            raise RequestError("model_failed", f"{self.name}: {self.error}")
        if not message.resumed and self.state == "loading":
            raise RequestError("model_loading", f"{self.name} is loading; try again in a moment", retry_after=RETRY_AFTER_S)
        depth = self.config.admission.queue_depth
        if not message.resumed and len(self._held) >= max(1, depth):
            raise RequestError(
                "queue_full", f"{len(self._held)} requests wait and {depth} may; try again later", retry_after=RETRY_AFTER_S
            )
        self._held.add(client, message, now)

    def _release_held(self, now: float) -> None:
        """Gives the scheduler what was kept; what it refuses is refused."""
        if self.scheduler is None or self.state != "ready":
            return
        held = self._held.take()
        for client, message in held:
            try:
                self.handle(client, message, now)
            except RequestError as error:
                self.refusals.append(GivenUp(client, message.req_id, error))

    def knows(self, client: bytes, req_id: str) -> bool:
        return self._held.has(client, req_id) or (self.scheduler is not None and self.scheduler.knows(client, req_id))

    def drop_client(self, client: bytes, now: float) -> None:
        self._held.drop_client(client)
        if self.scheduler is not None:
            self.scheduler.drop_client(client, now)

    def take_newcomers(self) -> list[Request]:
        """Requests that run for the first time since this was last asked."""
        return [] if self.scheduler is None else self.scheduler.seating.take_newcomers()

    def plan_step(self, now: float) -> Plan | None:
        if self.state != "ready" or self.scheduler is None:
            return None
        return self.scheduler.plan_step(now)

    # time

    def expire(self, now: float) -> list[GivenUp]:
        """Requests that waited too long, to be refused."""
        wait_s = self.config.admission.queue_wait_s
        error = RequestError("queue_timeout", f"nothing was started for {wait_s:g} s; try again later", retry_after=RETRY_AFTER_S)
        late = [GivenUp(client, req_id, error) for client, req_id in self._held.take_new(now - wait_s)]
        return late + (self.scheduler.expire(now) if self.scheduler is not None else [])

    def next_deadline(self) -> float | None:
        """When `expire` may have something to do."""
        oldest = self._held.oldest_new()
        times = [
            None if oldest is None else oldest + self.config.admission.queue_wait_s,
            None if self.scheduler is None else self.scheduler.next_deadline(),
        ]
        return min((time for time in times if time is not None), default=None)

    # operators

    def configure(self, config: Config) -> None:
        """Another configuration counts from now on; keys that cannot change are as before."""
        self.config = config
        if self.scheduler is not None and self._loaded is not None and self._plan is not None:
            self.scheduler.adjust(self._limits(self._loaded, self._plan))

    def pause(self, paused: bool, now: float) -> None:
        """What comes while the model is paused waits; what came before goes on."""
        self.paused = paused
        if not paused:
            self._release_held(now)

    def turn_away(self, now: float) -> list[GivenUp]:
        """Requests that wait and never ran are refused: the service stops."""
        error = RequestError("shutting_down", "the server is shutting down; ask another instance, or again when it is back")
        held = [GivenUp(client, req_id, error) for client, req_id in self._held.take_new()]
        return held + (self.scheduler.turn_away(now, error) if self.scheduler is not None else [])

    def end(self, req_id: str, now: float, note: str) -> int:
        """Ends the requests of that id; how many choices it was."""
        ended = RequestError("generation_failed", f"the request was ended by the server: {note}")
        held = self._held.find(req_id)
        for client, _ in held:
            self._held.forget(client, req_id)
            self.refusals.append(GivenUp(client, req_id, ended))
        return len(held) + (self.scheduler.end(req_id, now, note) if self.scheduler is not None else 0)

    def flush_cache(self) -> int:
        """Forgets cached prefixes; how many blocks."""
        return self.scheduler.memory.flush_cache() if self.scheduler is not None else 0

    @property
    def has_work(self) -> bool:
        """Sequences wait or run."""
        return self.scheduler is not None and bool(self.scheduler.running or len(self.scheduler.waiting))

    @property
    def num_held(self) -> int:
        return len(self._held)

    def open_requests(self) -> list[str]:
        """Ids of the requests that wait or run."""
        return self._held.req_ids() + (self.scheduler.open_requests() if self.scheduler is not None else [])

    def set_weight(self, key: str, weight: float) -> None:
        """A key's share of the device where keys compete."""
        if self.scheduler is not None:
            self.scheduler.waiting.set_weight(key, weight)

    def take_refusals(self) -> list[GivenUp]:
        """Requests that turned out impossible after they were accepted."""
        refusals, self.refusals = self.refusals, []
        return refusals

    @property
    def num_requests(self) -> int:
        """Requests that are known, until their ends are acknowledged."""
        return len(self._held) + (self.scheduler.num_requests if self.scheduler is not None else 0)

    def num_open_of(self, key: str) -> int:
        """A key's requests that wait or run."""
        return self._held.num_of(key) + (self.scheduler.num_open_of(key) if self.scheduler is not None else 0)

    def info(self) -> ModelInfo:
        loaded, plan = self._loaded, self._plan
        return ModelInfo(
            name=self.name,
            state=self.state,
            source=self.served.source,
            files=self.served.files,
            created=self.created,
            context=min(loaded.context, plan.blocks * BLOCK_SIZE) if loaded and plan else 0,
            vocab=loaded.vocab if loaded else 0,
            seats=plan.seats if plan else 0,
            fingerprint=loaded.fingerprint if loaded else "",
            ops=loaded.ops if loaded else "",
            remedy=loaded.remedy if loaded else "",
            error=self.error,
            instance=self.instance,
        )


def _prices(loaded: Loaded) -> StepPrices:
    units = UnitPrices(loaded.logit_row_ms, loaded.decode_position_ms, loaded.prompt_position_ms)
    return StepPrices(PriceTable(loaded.prices), units)
