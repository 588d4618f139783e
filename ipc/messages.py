"""Every message of clients, scheduler and device workers; the supervisor's are in leash_messages.py. In words: ipc/README.md.

Client messages are msgpack maps with a `type` key, so that any msgpack library can speak them. Worker messages are msgpack
arrays of columns, because a step is on the hot path. Unknown fields, types and extensions are refused by the decoders
(ipc/codec.py). Token ids, counts and positions are non-negative; a position is an absolute index in prompt + output.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

PROTOCOL_VERSION = 1

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]

FinishReason = Literal["stop", "length", "abort", "error"]
AbortReason = Literal["cancel", "stop", "slow_client"]
Priority = Literal["interactive", "background"]
# restarting: it was ready, and will be again; unloaded: it is loaded once somebody asks for it
ModelState = Literal["unloaded", "loading", "ready", "restarting", "failed"]


class SamplingParams(Struct, forbid_unknown_fields=True):
    """What turns logits into tokens, and when a sequence ends. Defaults are neutral; `temperature` 0 is greedy."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    min_tokens: Count = 0
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 1.0
    top_k: Count = 0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] = 0.0
    logit_bias: dict[TokenId, Bias] = field(default_factory=dict)
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=-1, le=20)] = -1  # -1: none; k: the sampled token's and the k best
    prompt_logprobs: Annotated[int, Meta(ge=-1, le=20)] = -1  # the same, of each prompt token but the first
    hash_logits: bool = False  # a digest of each sampled row's logits comes with its token
    grammar: Annotated[str, Meta(max_length=32 * 1024)] = ""  # llguidance's, that the whole output is held to; empty: none
    # reasoning longer than so many tokens is closed; -1: no bound. It starts with `thinking_open`, or the prompt left the model
    # inside, and ends with `thinking_close`
    thinking_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    thinking_open: Annotated[list[TokenId], Meta(max_length=64)] = field(default_factory=list)
    thinking_close: Annotated[list[TokenId], Meta(max_length=64)] = field(default_factory=list)
    thinking_inside: bool = False


class ModelInfo(Struct, forbid_unknown_fields=True):
    """One served model, as clients see it. `files` maps a role (`gguf`) to a path readable by processes of this machine."""

    name: str
    state: ModelState
    source: str
    files: dict[str, str]
    created: int  # seconds since the epoch
    context: int  # tokens, prompt + output
    vocab: int  # width of the logits
    seats: int
    fingerprint: str  # names build, model file, op set and machine type: equal fingerprints give equal tokens
    ops: str
    remedy: str = ""  # what would make it faster, or what to do about `failed`
    error: str = ""
    instance: int = 0  # which loading of the model; a swapped model has another
    pooling: str = ""  # `mean` or `last`: it makes embeddings, and generates nothing
    on_request: bool = False  # it is being loaded, or will be, because somebody asks: requests wait for it


# client -> scheduler


class Hello(Struct, tag="hello", forbid_unknown_fields=True):
    protocol: int
    client: Annotated[str, Meta(max_length=128)] = ""


class Generate(Struct, tag="generate", forbid_unknown_fields=True):
    """Idempotent by `req_id`: asked again, the scheduler sends what the client does not hold yet.

    `output_ids` and `seeds` have one entry a choice. A client that resubmits after a lost scheduler sets `resumed` and gives
    the ids it holds.
    """

    req_id: RequestId
    model: str
    prompt_ids: list[TokenId]
    output_ids: Annotated[list[list[TokenId]], Meta(min_length=1, max_length=128)]
    seeds: Annotated[list[Seed], Meta(min_length=1, max_length=128)]
    params: SamplingParams
    credit: Count  # output tokens a choice that may be sent before the first Credit
    resumed: bool = False
    priority: Priority = "interactive"  # a background request gives its seat up to an interactive one, and goes on later
    key: Annotated[str, Meta(max_length=128)] = ""  # opaque: whom the work is counted for; cached prefixes are shared within it
    cache_salt: Annotated[str, Meta(max_length=256)] = ""  # cached prefixes are shared only under an equal one
    instance: Count = 0  # of ModelInfo: the loading that its ids were made for, which alone may go on with it; 0: the current one


class Abort(Struct, tag="abort", forbid_unknown_fields=True):
    """`stop`: the client found a stop string; usage and finish count the first `keep` output tokens."""

    req_id: RequestId
    choice: Count
    reason: AbortReason
    keep: Count | None = None


class Credit(Struct, tag="credit", forbid_unknown_fields=True):
    """The choice's output may be sent up to `upto` tokens."""

    req_id: RequestId
    choice: Count
    upto: Count


class Embed(Struct, tag="embed", forbid_unknown_fields=True):
    """A prompt's embedding, which comes as Deltas: what `ipc.embedding.request` makes of it is a Generate like others."""

    req_id: RequestId
    model: str
    prompt_ids: list[TokenId]


class Want(Struct, tag="want", forbid_unknown_fields=True):
    """A request waits at the client for this model, which is `unloaded`: load it. A Generate says the same."""

    model: Annotated[str, Meta(max_length=4096)]


class FinishAck(Struct, tag="finish_ack", forbid_unknown_fields=True):
    """The client holds the choice's finish; until then it is sent again after each Generate of the same id."""

    req_id: RequestId
    choice: Count


ClientMessage = Hello | Generate | Abort | Credit | Embed | Want | FinishAck


# scheduler -> client


class Welcome(Struct, tag="welcome", forbid_unknown_fields=True):
    """Answers Hello. A new `incarnation` is a new scheduler process: resubmit what is not finished."""

    incarnation: int
    protocol: int
    models: list[ModelInfo]
    draining: bool = False


class Models(Struct, tag="models", forbid_unknown_fields=True):
    """The models changed (state, or which are served)."""

    incarnation: int
    models: list[ModelInfo]
    draining: bool = False


class Accepted(Struct, tag="accepted", forbid_unknown_fields=True):
    incarnation: int
    req_id: str


class Seated(Struct, tag="seated", forbid_unknown_fields=True):
    """Requests of which a choice runs for the first time: they are accepted, and from here on not refused."""

    incarnation: int
    req_ids: list[str]


class Refused(Struct, tag="refused", forbid_unknown_fields=True):
    """Not taken, or given up before its first token. `code` is one of helexa.errors' codes; `retry_after` in seconds."""

    incarnation: int
    req_id: str
    code: str
    message: str
    retry_after: float | None = None


class Finish(Struct, forbid_unknown_fields=True):
    """How a choice ended. `output_tokens` counts up to the token that ended it; `error` goes with reason `error`."""

    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    stop_token: int | None = None
    error: str = ""


class TokenLogprobs(Struct, array_like=True, forbid_unknown_fields=True):
    """Natural-log probabilities at one position: of the sampled token, and of the best `ids` in falling order."""

    logprob: float
    ids: list[int]
    logprobs: list[float]


class Deltas(Struct, tag="deltas", forbid_unknown_fields=True):
    """New output of one step for one client; columns, entry i of each belongs to one choice.

    `starts[i]` is the index in the choice's output of `ids[i][0]`: a receiver drops what lies below the count it holds.
    `finishes`, `logprobs` and `hashes` are sparse, keyed by i; the last two have one entry an id. `prompt_logprobs` comes with a
    choice's first output, with one entry for each prompt token but the first; `pooled`, where the model makes embeddings, comes
    with its only one: float32, little-endian, as it was pooled.
    """

    incarnation: int
    req_ids: list[str]
    choices: list[int]
    starts: list[int]
    ids: list[list[int]]
    finishes: dict[int, Finish] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    hashes: dict[int, list[int]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[int, bytes] = field(default_factory=dict)


SchedulerMessage = Welcome | Models | Accepted | Seated | Refused | Deltas


# scheduler <-> device worker: one SEQPACKET connection per rank, which is one incarnation


class Register(Struct, array_like=True, tag="register", forbid_unknown_fields=True):
    """A worker's first words on a connection."""

    model: str
    rank: int
    pid: int
    protocol: int
    instance: int = 1  # which loading of the model


class Load(Struct, array_like=True, tag="load", forbid_unknown_fields=True):
    """Load the weights (or keep them, when the same are loaded), then answer Loaded or Fault."""

    files: dict[str, str]
    max_step_tokens: int
    max_seats: int
    context: int  # tokens; 0: what the model was trained for
    memory_limit: int  # bytes for weights, KV and workspace; 0: what the machine allows
    threads: int  # 0: physical cores the process may use
    ops: str  # `auto`, `native` or `reference`
    quant: str = ""  # what float matrices are quantised to as they are loaded; empty: they stay
    quant_cache: str = ""  # the folder where they are kept then; empty: nowhere
    quant_cache_bytes: int = 0  # what it may hold
    ranks: int = 1  # how many workers hold the model together, each a shard of it


class SharedHandle(Struct, array_like=True, forbid_unknown_fields=True):
    """An array of another process: ipc.shared_array.ArrayHandle on the wire."""

    allocation: bytes
    offset: int  # bytes
    shape: list[int]
    dtype: str


class Exported(Struct, array_like=True, tag="exported", forbid_unknown_fields=True):
    """Answers Load where there are several ranks: this one holds its shard, and shares `handles`; what each is for, only workers
    know. Loaded follows Join."""

    handles: list[SharedHandle]


class Join(Struct, array_like=True, tag="join", forbid_unknown_fields=True):
    """What each rank exported, by rank: open it, compare notes with the others, then answer Loaded or Fault."""

    handles: list[list[SharedHandle]]


class Loaded(Struct, array_like=True, tag="loaded", forbid_unknown_fields=True):
    """`prices` are (rows in a step, milliseconds) pairs, rising in rows, each the fastest of a few runs; the prices after them are
    milliseconds too. `free_bytes` is what the memory limit leaves for KV; `memory_note` says what bound that limit."""

    free_bytes: int
    memory_note: str
    weight_bytes: int
    bytes_per_block: int
    context: int
    vocab: int
    eos_ids: list[int]  # tokens that end an answer
    prices: list[tuple[int, float]]
    logit_row_ms: float  # what a row that wants logits costs beyond that
    decode_position_ms: float  # and each position that a decoding row attends to
    prompt_position_ms: float  # or that a row of a prompt does
    ops: str
    threads_note: str
    remedy: str
    fingerprint: str
    load_seconds: float
    state_bytes: int = 0  # of the recurrent state of a seat, or of a snapshot of one
    pooling: str = ""  # `mean` or `last` of a prompt's rows, where the model makes embeddings
    own_memory: bool = False  # the memory is its device's, which no other rank uses; else all ranks share the machine's


class AllocateKV(Struct, array_like=True, tag="allocate_kv", forbid_unknown_fields=True):
    """Forget every seat, hold `blocks` KV blocks, `seats` rows and `snapshots` of recurrent state, then answer Ready or Fault."""

    blocks: int
    seats: int
    snapshots: int = 0


class Ready(Struct, array_like=True, tag="ready", forbid_unknown_fields=True):
    kv_bytes: int  # and the recurrent state's


class SeatJoin(Struct, array_like=True, forbid_unknown_fields=True):
    """A sequence takes a seat: its block table starts empty, and its ids with `history`."""

    seat: int
    seed: int
    prompt_len: int
    params: SamplingParams
    history: bytes = b""  # ids (int32, little-endian) whose KV lies in the seat's first blocks already
    snapshot: int = -1  # of the recurrent state behind `history`, where the model has one; -1: none


class Plan(Struct, array_like=True, tag="plan", forbid_unknown_fields=True):
    """One step. Entry i of `seats`, `starts`, `counts`, `carried`, `samples` is one sequence's part.

    It computes positions starts[i] .. starts[i] + counts[i] - 1. `carried[i]` is counts[i] when its ids are in `ids` (flat, in
    order), or 0 for a decode row whose one id is the seat's last sampled token. `samples[i]`: the part reaches the sequence's
    end, so a token is drawn. `block_seats[j]` gets `blocks[j]` appended to its table before the step. `repeat` steps are run
    without a new plan when every block is reserved. After the (first) step the recurrent state of seat `save_seats[j]` is copied
    to snapshot `snapshots[j]`.
    """

    incarnation: int
    step: int
    repeat: int
    leaves: list[int]
    joins: list[SeatJoin]
    seats: list[int]
    starts: list[int]
    counts: list[int]
    carried: list[int]
    samples: list[bool]
    ids: list[int]
    block_seats: list[int]
    blocks: list[int]
    save_seats: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)


class Yield(Struct, array_like=True, tag="yield", forbid_unknown_fields=True):
    """End a multi-step run after the step in hand."""

    incarnation: int


class Result(Struct, array_like=True, tag="result", forbid_unknown_fields=True):
    """Answer to one step of a plan: `ids[i]` was drawn for `seats[i]`; -1 where a RowError came before.

    `last` ends the plan. `logprobs` and `hashes` are keyed by seat.
    """

    incarnation: int
    step: int
    substep: int
    last: bool
    seats: list[int]
    ids: list[int]
    logprobs: dict[int, TokenLogprobs]
    hashes: dict[int, int]
    milliseconds: float


class RowError(Struct, array_like=True, tag="row_error", forbid_unknown_fields=True):
    """One row of the step failed; the others did not notice."""

    incarnation: int
    step: int
    seat: int
    error: str
    kind: Literal["row", "request"] = "row"  # its numbers were wrong, or what was asked for could not be done


class PromptLogprobs(Struct, array_like=True, tag="prompt_logprobs", forbid_unknown_fields=True):
    """Comes before its step's Result: `logprobs[j]` is of the seat's prompt token number `start` + 1 + j."""

    incarnation: int
    step: int
    seat: int
    start: int
    logprobs: list[TokenLogprobs]


class Pooled(Struct, array_like=True, tag="pooled", forbid_unknown_fields=True):
    """Comes before its step's Result: the embedding of the seat's prompt."""

    incarnation: int
    step: int
    seat: int
    values: bytes  # float32, little-endian


class Fault(Struct, array_like=True, tag="fault", forbid_unknown_fields=True):
    """The worker cannot go on; it exits after this. `kind`: `load`, `memory`, `device`, `plan`."""

    kind: str
    message: str


ToWorker = Load | Join | AllocateKV | Plan | Yield
FromWorker = Register | Exported | Loaded | Ready | Result | RowError | PromptLogprobs | Pooled | Fault
