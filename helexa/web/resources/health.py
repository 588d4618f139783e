"""/health: this process is alive. /ready: a request would be served now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from falcon.asgi import Request, Response

from helexa.web.services import Services
from ipc.messages import ModelInfo


def activation(infos: Iterable[ModelInfo]) -> dict[str, Any]:
    """How far the models are, by name: `pending` ones are still fetched, `in_progress` ones load, or load again. Those that are
    loaded on request are none of them until somebody asks."""
    groups: dict[str, list[str]] = {"pending": [], "in_progress": [], "completed": [], "failed": []}
    known = list(infos)
    for info in known:
        if info.state == "unloaded":
            continue
        if info.state == "loading":
            groups["in_progress" if info.files else "pending"].append(info.name)
        else:
            groups[{"ready": "completed", "failed": "failed"}.get(info.state, "in_progress")].append(info.name)
    states = ("in_progress", "pending", "completed", "failed")
    none = "completed" if known else "pending"
    return {"state": next((state for state in states if groups[state]), none), **groups}


class Health:
    async def on_get(self, req: Request, resp: Response) -> None:
        resp.media = {"status": "alive"}


class Ready:
    def __init__(self, services: Services) -> None:
        self._engine = services.engine

    async def on_get(self, req: Request, resp: Response) -> None:
        body = self._body()
        resp.media = body
        if body["state"] != "ready":
            resp.status = 503
            resp.set_header("Retry-After", "1")

    def _body(self) -> dict[str, Any]:
        engine = self._engine
        models = [
            {"name": info.name, "state": info.state, "ops": info.ops, "remedy": info.remedy, "error": info.error}
            for info in engine.models.values()
        ]
        return {
            "state": self._state(),
            "models": models,
            "activation": activation(engine.models.values()),
            "incarnation": engine.streams.incarnation,
        }

    def _state(self) -> str:
        """`ready` once one model is, or would be loaded for a request; else what is waited for."""
        engine = self._engine
        states = {info.state for info in engine.models.values()}
        if not engine.connected:
            return "starting" if engine.streams.incarnation is None else "scheduler_down"
        if engine.streams.draining:
            return "draining"
        if states & {"ready", "unloaded"}:
            return "ready"
        if "restarting" in states:
            return "restarting"
        return "failed" if states == {"failed"} else "loading"
