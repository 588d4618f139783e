"""/v1/responses and /v1/responses/compact."""

from __future__ import annotations

from falcon.asgi import Request, Response

from helexa.web.body import read_object
from helexa.web.resources.generating import answer
from helexa.web.services import Services
from helexa.web.wire import openai_compact, openai_responses


class Responses:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        wire = openai_responses.parse(await read_object(req, self._services.config.server.max_body_bytes))
        await answer(req, resp, self._services, wire, "resp_", openai_responses.ResponseReply)


class Compact:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        wire = openai_compact.parse(await read_object(req, self._services.config.server.max_body_bytes))
        await answer(req, resp, self._services, wire, "resp_", openai_compact.CompactReply)
