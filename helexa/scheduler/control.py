"""The control socket's commands: one JSON line in, one JSON line out (docs/operation.md). Pure.

Request: `{"v": 1, "cmd": NAME, ...}` with the command's arguments, all strings. Answer: `{"ok": true, ...}` or `{"ok": false,
"error": TEXT}`. What changes the service as a whole is the supervisor's to do: such a line becomes a `Forward`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from helexa.keys.key_limits import Usage
from helexa.metrics import Metrics
from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import Roster

CONTROL_VERSION = 1


@dataclasses.dataclass(frozen=True)
class State:
    """What commands may look at, and the engines that they may act on. `now` in seconds, monotonic."""

    incarnation: int
    roster: Roster
    metrics: Metrics
    clients: int
    usage: Mapping[str, Usage]
    draining: bool
    generation: int  # of the configuration
    now: float


@dataclasses.dataclass(frozen=True)
class Forward:
    """A command for the supervisor, which answers later."""

    command: str
    arguments: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Command:
    """`act` None: the supervisor's."""

    help: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    act: Callable[[State, dict[str, str]], dict[str, Any]] | None = None


def answer(line: bytes, state: State) -> bytes | Forward:
    """Never raises."""
    try:
        name, arguments = _parse(line)
        command = COMMANDS[name]
        if command.act is None:
            return Forward(name, arguments)
        reply = {"ok": True, **command.act(state, arguments)}
    except (ValueError, TypeError, RecursionError) as error:
        reply = {"ok": False, "error": str(error)}
    return encode(reply)


def encode(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply).encode() + b"\n"


def _parse(line: bytes) -> tuple[str, dict[str, str]]:
    """(command, its arguments). Raises ValueError."""
    request = json.loads(line)
    if not isinstance(request, dict) or request.get("v") != CONTROL_VERSION:
        raise ValueError(f'expected {{"v": {CONTROL_VERSION}, "cmd": ...}}')
    name = request.get("cmd")
    if not isinstance(name, str) or name not in COMMANDS:
        raise ValueError(f"unknown command {name!r}; known: {', '.join(sorted(COMMANDS))}")
    command = COMMANDS[name]
    arguments = {key: value for key, value in request.items() if key not in ("v", "cmd")}
    unknown = set(arguments) - {*command.required, *command.optional}
    if unknown:
        raise ValueError(f"unknown field `{min(unknown)}`")
    for field in command.required:
        if field not in arguments:
            raise ValueError(f"`{name}` needs `{field}`")
    for field, value in arguments.items():
        if not isinstance(value, str) or not value or len(value) > 4096:
            raise ValueError(f"`{field}` must be a string that is not empty")
        value.encode()  # half of a surrogate pair has no bytes
    return name, arguments


def _status(state: State, arguments: dict[str, str]) -> dict[str, Any]:
    current = state.roster.current()
    return {
        "pid": os.getpid(),
        "incarnation": state.incarnation,
        "clients": state.clients,
        "draining": state.draining,
        "generation": state.generation,
        "models": [_model(engine, current.get(engine.name) is engine) for engine in state.roster],
        "keys": {key: usage.counts() for key, usage in state.usage.items()},
    }


def _model(engine: Engine, current: bool) -> dict[str, Any]:
    entry: dict[str, Any] = msgspec.to_builtins(engine.info())
    entry |= {
        "current": current,
        "paused": engine.paused,
        "held": engine.num_held,
        "worker": engine.worker,
        "ranks": engine.ranks,
        "pids": engine.pids,
        "last_fault": engine.last_fault,
        "pinned": engine.served.pinned,
        "resident_bytes": engine.resident_bytes,
    }
    scheduler = engine.scheduler
    if scheduler is not None:
        entry |= {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "blocks_total": scheduler.memory.pool.total,
            "blocks_used": scheduler.memory.pool.num_used,
            "blocks_cached": scheduler.memory.pool.num_cached,
            "weight_bytes": engine.weight_bytes,
        }
    entry["counters"] = dataclasses.asdict(engine.counters)
    return entry


def _metrics(state: State, arguments: dict[str, str]) -> dict[str, Any]:
    return {"text": state.metrics.text()}


def _abort(state: State, arguments: dict[str, str]) -> dict[str, Any]:
    """`id` as the logs have it; a request of several prompts has several: ID, ID-1, ..."""
    ended = sum(engine.end(arguments["id"], state.now, "ended by an operator") for engine in state.roster)
    if not ended:
        raise ValueError(f"no request {arguments['id']} waits or runs")
    return {"note": f"{ended} choice{'s' if ended > 1 else ''} ended"}


def _flush_cache(state: State, arguments: dict[str, str]) -> dict[str, Any]:
    name = arguments.get("model")
    engines = [engine for engine in state.roster if name in (None, engine.name)]
    if not engines:
        raise ValueError(f"no model `{name}` is served")
    blocks = sum(engine.flush_cache() for engine in engines)
    return {"note": f"{blocks} cached blocks are free", "blocks": blocks}


COMMANDS: dict[str, Command] = {
    "status": Command("models, sequences, memory, counters, usage of keys", act=_status),
    "metrics": Command("the text of /metrics", act=_metrics),
    "load": Command("serve one more model", ("model",), ("name",)),
    "unload": Command("stop serving a model once its requests have ended", ("model",)),
    "reload": Command("take over a changed configuration, and swap the model if it changed"),
    "drain": Command("refuse new requests; what runs may end"),
    "resume": Command("end a drain, and the pause of one model or all", (), ("model",)),
    "pause": Command("let new requests of one model, or all, wait; what runs goes on", (), ("model",)),
    "abort": Command("end one request", ("id",), act=_abort),
    "flush-cache": Command("forget cached prefixes of one model, or all", (), ("model",), act=_flush_cache),
    "log-level": Command("debug, info, warning or error, until the next restart", ("level",)),
}
