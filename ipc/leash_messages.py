"""What the supervisor and its children say over each child's leash, a SEQPACKET pair: words that an exit code cannot carry.

The arbiter's leash to the supervisor is one too.
"""

from __future__ import annotations

from msgspec import Struct, field


class ChildReady(Struct, tag="child_ready", forbid_unknown_fields=True):
    """The child serves. `note` is for the start-up report."""

    note: str = ""


class Progress(Struct, tag="progress", forbid_unknown_fields=True):
    """A line of the start-up report."""

    phase: str
    note: str


class LastWords(Struct, tag="last_words", forbid_unknown_fields=True):
    """Why the child ends; one line with the remedy."""

    message: str


class SchedulerUp(Struct, tag="scheduler_up", forbid_unknown_fields=True):
    """To a device worker: a scheduler listens, connect."""


class ServeModel(Struct, tag="serve_model", forbid_unknown_fields=True):
    """To the scheduler: a worker of this model is being started, or was (`files`), or cannot be (`error`)."""

    name: str
    source: str
    files: dict[str, str]
    was_ready: bool = False  # under an earlier scheduler
    error: str = ""
    instance: int = 1  # told apart by it: while a model is swapped, two of one name are served
    context: int = 0  # tokens; 0: what the model was trained for
    blocks: int = 0  # KV blocks and seats it was given under an earlier scheduler; 0: to be planned
    seats: int = 0
    parked: bool = False  # it has no worker until somebody asks for it
    on_request: bool = False  # who asks for it waits until it is there
    listed: bool = False  # it is of the configuration: it may be unloaded, and is loaded again on request
    pinned: bool = False  # it is not unloaded for want of room
    need_bytes: int = 0  # what it takes at least, weights and KV; 0: unknown
    quant: str = ""  # what its float matrices are quantised to at load; empty: they stay
    snapshots: int = 0  # of recurrent state, that it was given with the blocks


class RetireModel(Struct, tag="retire_model", forbid_unknown_fields=True):
    """To the scheduler: nothing new goes to this instance; it says Retired once nothing runs there."""

    instance: int


class Dismiss(Struct, tag="dismiss", forbid_unknown_fields=True):
    """To the scheduler: an operator wants this model out of memory, once its requests have ended; Unload says that it is."""

    instance: int


class Summon(Struct, tag="summon", forbid_unknown_fields=True):
    """To the scheduler: an operator wants this parked model in memory."""

    instance: int


class Settings(Struct, tag="settings", forbid_unknown_fields=True):
    """To the scheduler: the configuration that counts now (a path), and what an operator wants of it. Sent whole."""

    config: str
    draining: bool = False
    paused: list[str] = field(default_factory=list)  # models that take nothing new


class LogLevel(Struct, tag="log_level", forbid_unknown_fields=True):
    """To a device worker: the least severe line that it logs."""

    level: str


class Drain(Struct, tag="drain", forbid_unknown_fields=True):
    """From the arbiter: the service is being stopped; what runs may end, what waits is refused."""


class OperatorAnswer(Struct, tag="operator_answer", forbid_unknown_fields=True):
    """To the scheduler, for the operator who asked `id`: done, as `note` says, or not, as `error` says."""

    id: int
    note: str = ""
    error: str = ""


class Stop(Struct, tag="stop", forbid_unknown_fields=True):
    """End now, in order."""


class ModelReady(Struct, tag="model_ready", forbid_unknown_fields=True):
    """From the scheduler: the model answers."""

    name: str
    instance: int = 1
    blocks: int = 0
    seats: int = 0
    snapshots: int = 0


class ModelLost(Struct, tag="model_lost", forbid_unknown_fields=True):
    """From the scheduler: the model's worker cannot serve it; `error` is one line."""

    name: str
    error: str
    instance: int = 1


class Retired(Struct, tag="retired", forbid_unknown_fields=True):
    """From the scheduler: a retired instance has nothing left to do, and is forgotten."""

    instance: int


class LoadModel(Struct, tag="load_model", forbid_unknown_fields=True):
    """From the scheduler: somebody asks for this parked model, and there is room: load it."""

    instance: int


class UnloadModel(Struct, tag="unload_model", forbid_unknown_fields=True):
    """From the scheduler: nothing runs on this listed model, and others need its room: end its worker; then it is parked."""

    instance: int


class OperatorAsks(Struct, tag="operator_asks", forbid_unknown_fields=True):
    """From the scheduler: a command of the control socket that is the supervisor's to carry out; answered by OperatorAnswer."""

    id: int
    command: str
    arguments: dict[str, str]


class Fetched(Struct, tag="fetched", forbid_unknown_fields=True):
    """From the fetcher: the model's files are in the cache."""

    files: dict[str, str]
    note: str


class Beat(Struct, tag="beat", forbid_unknown_fields=True):
    """The child runs; said about once a second by the scheduler and the device workers."""


class EndWorker(Struct, tag="end_worker", forbid_unknown_fields=True):
    """From the scheduler: this worker is to be ended, all processes of it: it has not answered in time, as `error` says, or, without
    one, a connection of it is over, and what lives of it would wait for the next scheduler."""

    name: str
    pids: list[int]
    error: str = ""


FromChild = (
    ChildReady
    | Progress
    | LastWords
    | ModelReady
    | ModelLost
    | Retired
    | LoadModel
    | UnloadModel
    | OperatorAsks
    | Fetched
    | Beat
    | EndWorker
)
ToChild = SchedulerUp | ServeModel | RetireModel | Dismiss | Summon | Settings | LogLevel | Drain | OperatorAnswer | Stop
