"""The configuration: one frozen tree, from `helexa.toml`, flags and the environment, resolved once by the supervisor.

This is the only module that reads environment variables. The keys are in helexa/config_tables.py (`helexa check-config --list` prints
them; docs/configuration.md is made from them). An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from helexa import config_types
from helexa.config_models import ListedModel
from helexa.config_tables import Config as Config
from helexa.errors import ConfigError
from helexa.formats import fault_spec


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
    ranks = config.devices.tensor_parallel
    if text and fault_spec.parse(text).rank >= ranks:
        raise ConfigError(f"${FAULT_VARIABLE}={text}: there are ranks 0 to {ranks - 1} (devices.tensor_parallel)")
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
