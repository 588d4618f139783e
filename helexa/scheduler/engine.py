"""One served model, as the scheduler process sees it: its worker's messages in, messages to the worker out. Pure.

A model goes from loading to ready when its worker has registered, loaded and allocated. A lost worker makes it restarting;
what its clients asked for stays and is computed again. A paused model keeps what comes until it is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from helexa.catalogue.memory_plan import MemoryPlan, StateNeed, plan_memory
from helexa.config import Config
from helexa.errors import RequestError, StartError
from helexa.scheduler.admission import RETRY_AFTER_S
from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.counters import Counters
from helexa.scheduler.held import HeldRequests, RequestMessage
from helexa.scheduler.presence import Presence
from helexa.scheduler.request_table import GivenUp
from helexa.scheduler.scheduler import Scheduler
from helexa.scheduler.sequence import Request
from helexa.scheduler.settings import limits_of, load_message, prices_of
from ipc import embedding
from ipc.leash_messages import ModelReady, Progress, ServeModel
from ipc.messages import (
    Abort,
    AllocateKV,
    Credit,
    Fault,
    Generate,
    Loaded,
    ModelInfo,
    ModelState,
    Plan,
    Pooled,
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
        self.state: ModelState = "restarting" if served.was_ready else "unloaded" if served.parked else "loading"
        self.presence = Presence(on_request=served.on_request)
        self._counters = Counters()  # of an earlier stay in memory
        self.error = ""
        self.worker: WorkerState = "none"
        self.pids: list[int] = []  # of the worker's ranks, once all are there
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

    @property
    def ranks(self) -> int:
        """How many processes its worker is."""
        return self.config.devices.tensor_parallel

    def on_register(self, taken_bytes: int = 0, pids: Sequence[int] = ()) -> list[ToWorker]:
        """A worker connected, all `pids` of it, by rank. `taken_bytes` of memory are promised to other models."""
        self._taken_bytes, self.pids = taken_bytes, list(pids)
        self.error, self.worker = "", "loading"
        if self.state == "failed":
            self.state = "loading"
        return [load_message(self.served, self.config)]

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
        elif self.scheduler is not None and isinstance(message, Pooled):
            self.scheduler.apply_pooled(message)
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
        return [AllocateKV(self._plan.blocks, self._plan.seats, self._plan.snapshots)]

    def _planned(self, loaded: Loaded) -> MemoryPlan:
        """What the model had under an earlier scheduler, else what is left for it. Raises StartError."""
        served, admission = self.served, self.config.admission
        if served.blocks:
            return MemoryPlan(served.blocks, served.seats, f"KV cache of {served.blocks:,} blocks, as before", served.snapshots)
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
            StateNeed(loaded.state_bytes, self.config.cache.snapshot_mib * 2**20 if self.config.cache.prefix_mib else 0),
        )

    @property
    def promised_bytes(self) -> int:
        """Memory for KV and recurrent state that the model may come to take."""
        loaded, plan = self._loaded, self._plan
        if loaded is None or plan is None:
            return 0
        return plan.blocks * loaded.bytes_per_block + (plan.seats + plan.snapshots) * loaded.state_bytes

    @property
    def pooling(self) -> str:
        """As in ModelInfo."""
        return self._loaded.pooling if self._loaded else ""

    @property
    def weight_bytes(self) -> int:
        return self._loaded.weight_bytes if self._loaded else 0

    def ready_message(self) -> ModelReady:
        plan = self._plan or MemoryPlan(0, 0, "")
        return ModelReady(self.name, self.instance, plan.blocks, plan.seats, plan.snapshots)

    def _on_ready(self, now: float) -> None:
        if self._loaded is None or self._plan is None:
            return
        if self.scheduler is None:
            limits = limits_of(self.config, self._loaded, self._plan)
            self.scheduler = Scheduler(
                limits,
                prices_of(self._loaded),
                frozenset(self._loaded.eos_ids),
                self._incarnation,
            )
            self.scheduler.counters.go_on_from(self._counters)
            self.scheduler.counters.loads += 1
        self.state, self.error, self.worker = "ready", "", "ready"
        self.presence.is_ready(now)
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

    def on_worker_hung(self, error: str) -> None:
        """It has not answered a step for too long, and is ended."""
        self.worker, self.last_fault = "hung", error
        if self.scheduler is not None:
            self.scheduler.counters.hangs += 1

    def on_worker_lost(self, now: float) -> None:
        self.pids = []
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
        self.presence.forget_wish()
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
            if self.pooling and not embedding.is_request(message, self.pooling):
                raise RequestError("generation_unsupported", f"{self.name} makes embeddings and generates nothing", "model")
            self.presence.is_used(now)
            self.scheduler.add(client, message, now)
        elif isinstance(message, Abort):
            self.scheduler.abort(client, message, now)
        elif isinstance(message, Credit):
            self.scheduler.credit(client, message)
        else:
            self.scheduler.acknowledge(client, message)

    def _keeps(self, client: bytes, message: RequestMessage) -> bool:
        """While the model is paused, or leaves: requests that never ran, and what is said about them."""
        new = isinstance(message, Generate) and not message.resumed and (self.paused or self.presence.leaving)
        return self._held.has(client, message.req_id) or (new and not self.knows(client, message.req_id))

    def _hold(self, client: bytes, message: RequestMessage, now: float) -> None:
        if not isinstance(message, Generate):
            if self._held.has(client, message.req_id):
                self._held.add(client, message, now)
            return
        if self.state == "failed":
            raise RequestError("model_failed", f"{self.name}: {self.error}")
        if not message.resumed and self.state == "loading" and not self.presence.on_request:
            raise RequestError("model_loading", f"{self.name} is loading; try again in a moment", retry_after=RETRY_AFTER_S)
        depth = self.config.admission.queue_depth
        if not message.resumed and len(self._held) >= max(1, depth):
            raise RequestError(
                "queue_full", f"{len(self._held)} requests wait and {depth} may; try again later", retry_after=RETRY_AFTER_S
            )
        self._held.add(client, message, now)
        if self.state == "unloaded" or self.presence.leaving:
            self.presence.want(now)

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

    # in memory or not

    @property
    def counters(self) -> Counters:
        return self._counters if self.scheduler is None else self.scheduler.counters

    @property
    def is_busy(self) -> bool:
        """Something runs, or its end is not acknowledged."""
        return self.scheduler is not None and self.scheduler.num_requests > 0

    @property
    def resident_bytes(self) -> int:
        """What the model takes, or may come to take, of the memory ceiling."""
        if self._loaded is not None and self._plan is not None:
            return self.weight_bytes + self.promised_bytes
        return self.presence.unloading_bytes or (self.served.need_bytes if self.state in ("loading", "restarting") else 0)

    def want(self, now: float) -> None:
        """Somebody waits for it."""
        if self.state == "unloaded" or self.presence.leaving:
            self.presence.want(now)

    def summon(self) -> None:
        """Its worker is being started, for those who ask."""
        self.state, self.error = "loading", ""
        self.presence.on_request = True
        self.presence.forget_wish()

    def stay(self, now: float) -> None:
        """Nobody needs its room any more."""
        self.presence.leaving = False
        self.presence.forget_wish()
        if not self.paused:
            self._release_held(now)

    def unload(self) -> None:
        """Nothing runs: forgets all that its worker has. The worker is being ended."""
        assert self.scheduler is not None and not self.is_busy
        self.presence.unloading_bytes = self.resident_bytes
        self.presence.leaving = self.presence.dismissed = False
        self._counters = self.scheduler.counters
        self.scheduler = self._loaded = self._plan = None
        self.state, self.worker, self.pids = "unloaded", "none", []

    def park(self, now: float) -> None:
        """It has no worker any more."""
        self.scheduler = self._loaded = self._plan = None
        self.presence.unloading_bytes = 0
        self.presence.on_request = True
        self.worker, self.pids = "none", []
        if self.state == "failed":
            self.presence.failed_at = now
        else:
            self.state = "unloaded"

    def try_again(self) -> None:
        """A model that could not be loaded may be asked for again."""
        self.presence.failed_at = None
        self.state = "unloaded"

    # operators

    def configure(self, config: Config) -> None:
        """Another configuration counts from now on; keys that cannot change are as before."""
        self.config = config
        if self.scheduler is not None and self._loaded is not None and self._plan is not None:
            self.scheduler.adjust(limits_of(self.config, self._loaded, self._plan))

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
            pooling=self.pooling,
            on_request=self.presence.on_request,
        )
