"""/v1/models and /v1/models/{name}: what is served, with OpenAI's keys and a few of ours."""

from __future__ import annotations

from typing import Any

from falcon.asgi import Request, Response

from helexa.web.engine_client import model_not_found
from helexa.web.services import Services
from ipc.messages import ModelInfo


def document(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "model",
        "created": info.created,
        "owned_by": "helexa",
        "context_length": info.context,
        "status": info.state,
    }


class ModelList:
    def __init__(self, services: Services) -> None:
        self._engine = services.engine

    async def on_get(self, req: Request, resp: Response) -> None:
        models = await self._engine.registry()
        resp.media = {"object": "list", "data": [document(info) for info in models.values()]}


class ModelOne:
    def __init__(self, services: Services) -> None:
        self._engine = services.engine

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        models = await self._engine.registry()
        if name not in models:
            raise model_not_found(name, models)
        resp.media = document(models[name])
