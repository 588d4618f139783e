"""/v1/embeddings: answered with why there are none."""

from __future__ import annotations

from falcon.asgi import Request, Response

from helexa.errors import RequestError
from helexa.web.body import read_object
from helexa.web.services import Services


class Embeddings:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        body = await read_object(req, self._services.config.server.max_body_bytes)
        name = body.get("model")
        if not isinstance(name, str):
            raise RequestError("invalid_value", "`model` is required: a name that /v1/models lists", "model")
        info = await self._services.engine.model(name)
        raise RequestError(
            "embeddings_unsupported", f"model `{info.name}` generates text and makes no embeddings; no served model does", "model"
        )
