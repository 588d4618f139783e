"""The tables of the configuration: each key with its type, default, unit, bounds and a line of documentation. Pure.

helexa/config.py reads them from `helexa.toml`, flags and the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from helexa.config_models import QUANT_DOC, ListedModel, Loading, Quant
from helexa.config_tracing import Tracing
from helexa.config_types import key


@dataclass(frozen=True)
class Server:
    host: str = key("127.0.0.1", "Address to listen on. Anything but loopback is open to your network: set keys.file.")
    port: int = key(8000, "TCP port; also names the run directory.", least=1, most=65535)
    web_workers: int = key(1, "Web worker processes.", least=1, most=64)
    allowed_hosts: list[str] = key(
        [],
        "On a loopback address: further names that a request's Host may have. No authentication, only against DNS rebinding.",
        reload="live",
    )
    cors_origins: list[str] = key(
        [], 'Origins whose pages may use the API in a browser, as "https://chat.example"; "*": all.', reload="live"
    )
    max_connections: int = key(1024, "Connections a web worker holds; more get 503.", least=1)
    max_body_bytes: int = key(8 * 1024 * 1024, "Largest request body; more gets 413.", unit="bytes", least=1024, reload="live")
    keep_alive_s: int = key(5, "How long an idle connection stays open.", unit="seconds", least=0)
    drain_s: int = key(600, "How long a stop waits for running requests.", unit="seconds", least=0)


@dataclass(frozen=True)
class ModelChoice:
    source: str = key("smollm2", "The model served: an alias, or scheme:name (docs/models.md).", reload="live")
    name: str = key("", "The name clients use; empty: the source as given.", reload="live")
    context: int = key(0, "Longest prompt + output; 0: what the model was trained for.", unit="tokens", least=0, reload="live")
    quant: Quant = key("", QUANT_DOC, reload="live")
    load: Loading = key("start", "When it is loaded: as helexa starts, or on the first request for it.")
    pinned: bool = key(False, "Whether it keeps its memory even while another model waits for room.", reload="live")


@dataclass(frozen=True)
class Keys:
    file: str = key(
        "",
        "The file of API keys (`helexa keys add`), relative to helexa.toml. Empty: whoever reaches the port may ask.",
        reload="live",
    )
    open_routes: list[str] = key(
        [],
        'Routes that need no key though there are keys, such as "/metrics" and "/v1/models"; /health and /ready never do.',
        reload="live",
    )


@dataclass(frozen=True)
class Admission:
    seats: int | Literal["auto"] = key("auto", "Sequences that run at once; `auto`: by memory, at most 64.", least=1, most=256)
    queue_depth: int = key(256, "Requests that may wait; one more gets 503.", least=0, reload="live")
    queue_tokens: int = key(
        1_000_000, "Prompt tokens that may wait; a request beyond gets 503.", unit="tokens", least=0, reload="live"
    )
    queue_wait_s: float = key(30.0, "Longest wait for a seat, then 503.", unit="seconds", least=0.0, reload="live")
    batching: bool = key(True, "false: one sequence at a time.")


@dataclass(frozen=True)
class Scheduling:
    step_tokens: int = key(
        512, "Most tokens computed in one step; used in full when nothing decodes.", unit="tokens", least=1, most=4096
    )
    min_step_ms: float = key(
        8.0,
        "A step with decoding sequences may last twice a decode-only step, or this.",
        unit="milliseconds",
        least=0.0,
        reload="live",
    )
    reserve_tokens: int = key(
        2048, "Growth that memory is reserved for when a sequence takes a seat.", unit="tokens", least=16, reload="live"
    )
    steps_ahead: int = key(
        16,
        "Steps that a worker runs by itself while every stream decodes and none waits for a seat.",
        unit="steps",
        least=1,
        most=256,
        reload="live",
    )


@dataclass(frozen=True)
class Cache:
    prefix_mib: int = key(
        1024,
        "KV kept of prompts and replies for others that begin alike, in the KV cache's own memory; 0: none.",
        unit="MiB",
        least=0,
        reload="live",
    )
    snapshot_mib: int = key(
        512,
        "Recurrent state that hybrid models keep at points of prompts, from which others that begin alike go on; 0: none.",
        unit="MiB",
        least=0,
    )
    snapshot_every: int = key(
        1024,
        "Tokens of a prompt between two such points, in whole blocks of 16; there is one at the prompt's last block too.",
        unit="tokens",
        least=16,
    )
    quantised_mib: int = key(
        16384,
        "Weights quantised at load (model.quant) that are kept on disk for the next start; those used longest ago go; 0: none.",
        unit="MiB",
        least=0,
    )


@dataclass(frozen=True)
class Memory:
    limit_mib: int | Literal["auto"] = key(
        "auto",
        "Ceiling for weights, KV cache and workspace; `auto`: 70 % of what the machine and its cgroups leave free.",
        unit="MiB",
        least=64,
    )
    kv_blocks: int | Literal["auto"] = key(
        "auto",
        "Exact size of the KV cache, in blocks of 16 tokens, for tests and `helexa verify`; `auto`: what the ceiling allows.",
        unit="blocks",
        least=16,
    )


@dataclass(frozen=True)
class Sampling:
    temperature: float = key(0.7, "For requests and models that name none.", least=0.0, most=100.0, reload="live")
    unseeded: Literal["random", "prompt"] = key(
        "random", "Seed of a request that gives none: drawn at the door, or made from its prompt.", reload="live"
    )


@dataclass(frozen=True)
class Streaming:
    credit_tokens: int = key(
        512, "Output tokens the engine may run ahead of a client that does not read.", unit="tokens", least=1, reload="live"
    )
    slow_client_s: float = key(
        60.0, "A client that reads nothing for so long while output waits is ended.", unit="seconds", least=0.1, reload="live"
    )
    keep_alive_s: float = key(15.0, "A silent stream carries a comment this often.", unit="seconds", least=0.1, reload="live")


@dataclass(frozen=True)
class Cpu:
    threads: int | Literal["auto"] = key(
        "auto",
        "Threads of a device worker; `auto`: physical cores it may use, shared out among the ranks of a model.",
        least=1,
        most=1024,
    )
    ops: Literal["auto", "native", "reference", "stock"] = key(
        "auto",
        "Which ops run; `auto`: native where built, else the NumPy reference. `stock` is not exact: it is for "
        "`helexa verify --self-test` only.",
    )


@dataclass(frozen=True)
class Devices:
    use: str = key(
        "auto",
        "Where models run: `cpu`, `cuda` (every GPU, models in turn), `cuda:0,1` (these), or `auto`: the GPUs where PyTorch and CuPy "
        "are installed, else the CPU.",
    )
    tensor_parallel: int = key(
        1,
        "Device workers (ranks) that hold each model together, a shard each, on the CPU or a GPU each. Replies are the same with any "
        "number.",
        unit="ranks",
        least=1,
        most=16,
    )


@dataclass(frozen=True)
class Logging:
    level: Literal["debug", "info", "warning", "error"] = key("info", "Least severe line that is logged.", reload="live")
    format: Literal["text", "json"] = key("text", "Log lines on stderr.")


@dataclass(frozen=True)
class Debug:
    record_plans: str = key(
        "", "Folder for a file a step, which tools/replay_plan.py runs again by itself; holds token ids. Empty: none."
    )
    faults: bool = key(False, "Whether $HELEXA_FAULT may inject a fault into the device workers (docs/faults.md); for tests.")


@dataclass(frozen=True)
class Watch:
    heartbeat_s: float = key(
        5.0,
        "A scheduler or device worker that is silent for so long is ended and started again.",
        unit="seconds",
        least=1.0,
        reload="live",
    )
    step_s: float = key(
        120.0,
        "A device worker that takes longer for a step is ended and started again.",
        unit="seconds",
        least=0.5,
        reload="live",
    )


@dataclass(frozen=True)
class Paths:
    cache: str = key("", "Where models are kept; empty: $XDG_CACHE_HOME/helexa or ~/.cache/helexa.")
    run: str = key("", "Parent of the run directory; empty: $XDG_RUNTIME_DIR/helexa or the system's temp folder.")


@dataclass(frozen=True)
class Hub:
    endpoint: str = key("", "Base address of a Hugging Face Hub; empty: the public one.", reload="live")
    auth_env: str = key("HF_TOKEN", "Environment variable that holds the access token.", reload="live")


@dataclass(frozen=True)
class Config:
    server: Server = field(default_factory=Server)
    model: ModelChoice = field(default_factory=ModelChoice)
    keys: Keys = field(default_factory=Keys)
    admission: Admission = field(default_factory=Admission)
    scheduling: Scheduling = field(default_factory=Scheduling)
    cache: Cache = field(default_factory=Cache)
    memory: Memory = field(default_factory=Memory)
    sampling: Sampling = field(default_factory=Sampling)
    streaming: Streaming = field(default_factory=Streaming)
    cpu: Cpu = field(default_factory=Cpu)
    devices: Devices = field(default_factory=Devices)
    logging: Logging = field(default_factory=Logging)
    tracing: Tracing = field(default_factory=Tracing)
    debug: Debug = field(default_factory=Debug)
    watch: Watch = field(default_factory=Watch)
    paths: Paths = field(default_factory=Paths)
    hub: Hub = field(default_factory=Hub)
    models: dict[str, ListedModel] = key(
        {}, "Further models, by the name clients use: a section [models.NAME] for each (docs/operation.md).", reload="live"
    )
    aliases: dict[str, str] = key({}, 'Names of your own for model sources: name = "scheme:rest".', reload="live")
    default_source: str = key("huggingface", "Scheme of a model name that has none and is no alias.", reload="live")
    default_model: Literal["", "only"] = key(
        "", '"only": any model name is the one model that is served; empty: names must match.', reload="live"
    )
    offline: bool = key(False, "Never use the network; models must be in the cache.", reload="live")
