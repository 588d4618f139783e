"""/v1/models and /v1/models/{name}: what is served, with OpenAI's keys and a few of ours."""

from __future__ import annotations

from typing import Any

from falcon.asgi import Request, Response

from helexa.errors import RequestError
from helexa.web.engine_client import model_not_found
from helexa.web.model_text import ModelText
from helexa.web.request import DEFAULT_MAX_TOKENS
from helexa.web.services import Services
from ipc.messages import ModelInfo


def document(info: ModelInfo, text: ModelText | None) -> dict[str, Any]:
    """`capabilities` are null while the model's file cannot be read, or it is not loaded."""
    return {
        "id": info.name,
        "object": "model",
        "created": info.created,
        "owned_by": "helexa",
        "context_length": info.context,
        "max_output_tokens": min(info.context, DEFAULT_MAX_TOKENS),
        "status": info.state,
        "capabilities": None if text is None else _capabilities(text, bool(info.pooling)),
    }


def _capabilities(text: ModelText, embeds: bool) -> dict[str, bool]:
    """A model that makes embeddings does nothing else. `tools`: the model's own template has a place for them; others are told of
    tools in the system message."""
    return {
        "chat": text.chat is not None and not embeds,
        "tools": text.chat is not None and text.chat.takes_tools and not embeds,
        "reasoning": text.chat is not None and text.chat.markers is not None and not embeds,
        "structured_outputs": not embeds,
        "vision": False,
        "embeddings": embeds,
    }


class ModelList:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_get(self, req: Request, resp: Response) -> None:
        models = await self._services.engine.registry()
        resp.media = {"object": "list", "data": [await described(info, self._services) for info in models.values()]}


class ModelOne:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        models = await self._services.engine.registry()
        if name not in models:
            raise model_not_found(name, models)
        resp.media = await described(models[name], self._services)


async def described(info: ModelInfo, services: Services) -> dict[str, Any]:
    if info.state == "unloaded":
        return document(info, None)
    try:
        return document(info, await services.texts.of(info))
    except RequestError:
        return document(info, None)
