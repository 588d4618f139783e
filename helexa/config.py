"""The configuration: one frozen tree, from `helexa.toml`, flags and the environment, resolved once by the supervisor.

This is the only module that reads environment variables. Each key has a unit, a default and a line of documentation
(`helexa check-config --list` prints them; docs/configuration.md is made from them). An unknown key is an error that names the
nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from helexa import config_types
from helexa.config_models import QUANT_DOC, ListedModel, Loading, Quant
from helexa.config_tracing import Tracing
from helexa.config_types import key
from helexa.errors import ConfigError
from helexa.formats import fault_spec


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
        "auto", "Threads of a device worker; `auto`: physical cores it may use.", least=1, most=1024
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


@dataclass(frozen=True)
class KeyDoc:
    """One key for people: `path` is section.name."""

    path: str
    default: Any
    doc: str
    unit: str
    reload: str
    type: str


def describe(section: type[Any] = Config, prefix: str = "") -> Iterator[KeyDoc]:
    """Every key of the tree, in order."""
    hints = typing.get_type_hints(section)
    for item in dataclasses.fields(section):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            yield from describe(typing.cast(type[Any], hint), f"{prefix}{item.name}.")
            continue
        default = item.default if item.default is not dataclasses.MISSING else typing.cast(Any, item.default_factory)()
        meta = item.metadata
        yield KeyDoc(f"{prefix}{item.name}", default, meta["doc"], meta["unit"], meta["reload"], config_types.type_name(hint))


def describe_listed() -> Iterator[KeyDoc]:
    """The keys of one [models.NAME]."""
    return describe(ListedModel, "models.NAME.")


def value_of(config: Config, path: str) -> Any:
    """The value of a key, by the path that `describe` gives it."""
    here: Any = config
    for name in path.split("."):
        here = getattr(here, name)
    return here


def load(path: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Config:
    """The tree from a TOML file (None: no file), then flags keyed by path (`server.port`), then the environment's folders."""
    environ = os.environ if environ is None else environ
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for name, value in flags.items():
        section, _, leaf = name.rpartition(".")
        target = table.setdefault(section, {}) if section else table
        target[leaf] = value
    config = _build(Config, table, "")
    paths = dataclasses.replace(
        config.paths,
        cache=config.paths.cache or _default_cache(environ),
        run=config.paths.run or _default_run(environ),
    )
    keys = dataclasses.replace(config.keys, file=_absolute(config.keys.file, path))
    return dataclasses.replace(config, paths=paths, keys=keys)


def _absolute(file: str, config_file: Path | None) -> str:
    """A file named in helexa.toml lies relative to it, one named in a flag relative to the current folder."""
    base = config_file.absolute().parent if config_file is not None else Path.cwd()
    return str(base / Path(file).expanduser()) if file else ""


FLAGS_VARIABLE = "HELEXA_FLAGS"


def from_environment(environ: Mapping[str, str] | None = None) -> Config:
    """The tree of a service that `helexa serve`, or gunicorn by itself, starts: the file that counts, and serve's flags."""
    environ = os.environ if environ is None else environ
    file, flags = origin(environ)
    config = load(file, flags, environ)
    injected_fault(config, environ)
    return config


def origin(environ: Mapping[str, str] | None = None) -> tuple[Path | None, dict[str, Any]]:
    """(file, flags) of the service that was started with this environment: what a reload reads again."""
    environ = os.environ if environ is None else environ
    try:
        flags = json.loads(environ.get(FLAGS_VARIABLE, "{}"))
    except ValueError:
        flags = None
    if not isinstance(flags, dict):
        raise ConfigError(f"${FLAGS_VARIABLE} is not a JSON object; it is set by `helexa serve` alone")
    file = find_file(None, environ)
    return (None if file is None else file.absolute()), flags


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process."""
    return {**os.environ, **extra}


API_KEY_VARIABLE = "HELEXA_API_KEY"


def api_key_headers(environ: Mapping[str, str] | None = None, variable: str | None = None) -> dict[str, str]:
    """What a client sends to a service that has keys: the key that `variable` holds, by default $HELEXA_API_KEY if there is one.
    Raises ConfigError where a named variable holds none, or what it holds is no header."""
    name = variable or API_KEY_VARIABLE
    key = secret(name, environ)
    if not key and variable:
        raise ConfigError(f"${variable} is not set, so there is no API key to send; export it, or leave the option out")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"${name} holds no API key: only printable ASCII characters can be sent")
    return {"Authorization": f"Bearer {key}"} if key else {}


FAULT_VARIABLE = "HELEXA_FAULT"


def injected_fault(config: Config, environ: Mapping[str, str] | None = None) -> str:
    """The fault to inject, in the words of helexa/formats/fault_spec.py; empty where there is none. Raises ConfigError."""
    text = (os.environ if environ is None else environ).get(FAULT_VARIABLE, "")
    if text and not config.debug.faults:
        raise ConfigError(f"${FAULT_VARIABLE} is set, but debug.faults is not: unset it, or set faults = true in [debug]")
    if text:
        fault_spec.parse(text)
    return text


def secret(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The value of the environment variable that a key such as `hub.auth_env` names; empty where there is none."""
    return (os.environ if environ is None else environ).get(name, "") if name else ""


def find_file(flag: str | None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Which helexa.toml counts: the flag, $HELEXA_CONFIG, ./helexa.toml, else the user's own; None when there is none."""
    environ = os.environ if environ is None else environ
    named = flag or environ.get("HELEXA_CONFIG")
    if named:
        return Path(named)
    home = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for candidate in (Path("helexa.toml"), home / "helexa" / "helexa.toml"):
        if candidate.is_file():
            return candidate
    return None


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=1)


def from_json(text: str) -> Config:
    """The tree as `to_json` wrote it; what a child process is given."""
    return _build(Config, json.loads(text), "")


def read_generation(path: Path) -> Config:
    return from_json(path.read_text(encoding="utf-8"))


def _default_cache(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "helexa")


def _default_run(environ: Mapping[str, str]) -> str:
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return str(Path(runtime) / "helexa")
    return str(Path(environ.get("TMPDIR") or "/tmp") / f"helexa-{os.getuid()}")


S = TypeVar("S")


def _build(section: type[S], table: Mapping[str, Any], prefix: str) -> S:
    hints = typing.get_type_hints(section)
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, section))}
    values: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        if name not in fields:
            raise ConfigError(f"unknown key `{path}`{_nearest(path)}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _section(typing.cast(type[Any], hint), value, path)
        elif typing.get_origin(hint) is dict and dataclasses.is_dataclass(typing.get_args(hint)[1]):
            if not isinstance(value, dict):
                raise ConfigError(f"`{path}` holds sections: write [{path}.NAME]")
            kind = typing.get_args(hint)[1]
            values[name] = {own: _section(kind, item, f"{path}.{own}") for own, item in value.items()}
        else:
            values[name] = _checked(path, value, hint, fields[name].metadata)
    return section(**values)


def _section(kind: type[Any], value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"`{path}` is a section: write [{path}]")
    return _build(kind, value, f"{path}.")


def _nearest(path: str) -> str:
    known = [item.path for item in (*describe(), *describe_listed())]
    known += sorted({item.partition(".")[0] for item in known if "." in item})
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    if not close:
        leaf = path.rpartition(".")[2]
        close = [item for item in known if item.rpartition(".")[2] == leaf]
    return f"; did you mean `{close[0]}`?" if close else "; `helexa check-config --list` prints every key"


def _checked(path: str, value: Any, hint: Any, meta: Mapping[str, Any]) -> Any:
    if not config_types.fits(value, hint):
        meant = config_types.nearest(value, hint)
        suggestion = f'; did you mean "{meant}"?' if meant else ""
        raise ConfigError(f"`{path}` = {value!r}: expected {config_types.type_name(hint)}{suggestion}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = meta["least"], meta["most"]
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            limits = f"at least {least}" if most is None else f"between {least} and {most}"
            raise ConfigError(f"`{path}` = {value!r}: must be {limits}{' ' + meta['unit'] if meta['unit'] else ''}")
    return value
