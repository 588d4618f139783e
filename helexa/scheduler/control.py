"""The control socket's commands: one JSON line in, one JSON line out. Pure.

Request: `{"v": 1, "cmd": NAME}`. Answer: `{"ok": true, ...}` or `{"ok": false, "error": TEXT}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec

from helexa.metrics import Metrics
from helexa.scheduler.engine import Engine

CONTROL_VERSION = 1
MAX_LINE_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True)
class State:
    """What commands may look at."""

    incarnation: int
    engines: dict[str, Engine]
    metrics: Metrics
    clients: int


def answer(line: bytes, state: State) -> bytes:
    """The answer's line; never raises."""
    try:
        request = json.loads(line)
        if not isinstance(request, dict) or request.get("v") != CONTROL_VERSION:
            raise ValueError(f'expected {{"v": {CONTROL_VERSION}, "cmd": ...}}')
        unknown = set(request) - {"v", "cmd"}
        if unknown:
            raise ValueError(f"unknown field `{min(unknown)}`")
        command = _COMMANDS.get(request.get("cmd"))
        if command is None:
            raise ValueError(f"unknown command {request.get('cmd')!r}; known: {', '.join(sorted(_COMMANDS))}")
        reply = {"ok": True, **command(state)}
    except (ValueError, TypeError, RecursionError) as error:
        reply = {"ok": False, "error": str(error)}
    return json.dumps(reply).encode() + b"\n"


def _status(state: State) -> dict[str, Any]:
    models = []
    for engine in state.engines.values():
        entry: dict[str, Any] = msgspec.to_builtins(engine.info())
        scheduler = engine.scheduler
        if scheduler is not None:
            entry |= {
                "running": len(scheduler.running),
                "waiting": len(scheduler.waiting),
                "blocks_total": scheduler.memory.pool.total,
                "blocks_used": scheduler.memory.pool.num_used,
                "blocks_cached": scheduler.memory.pool.num_cached,
                "counters": dataclasses.asdict(scheduler.counters),
            }
        entry |= {"worker": engine.worker, "last_fault": engine.last_fault}
        models.append(entry)
    return {"pid": os.getpid(), "incarnation": state.incarnation, "clients": state.clients, "models": models}


def _metrics(state: State) -> dict[str, Any]:
    return {"text": state.metrics.text()}


_COMMANDS: dict[Any, Callable[[State], dict[str, Any]]] = {"status": _status, "metrics": _metrics}
