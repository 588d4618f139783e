"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio

from falcon.asgi import Request, Response

from helexa.web.body import read_object
from helexa.web.prepare import encode_prompt
from helexa.web.resources.generating import answer
from helexa.web.services import Services
from helexa.web.wire import anthropic_messages


class Messages:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        wire = anthropic_messages.parse(await read_object(req, self._services.config.server.max_body_bytes))
        await answer(req, resp, self._services, wire, "msg_", anthropic_messages.MessageReply)


class CountTokens:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        wire = anthropic_messages.parse_count(await read_object(req, self._services.config.server.max_body_bytes))
        info = await self._services.engine.model(wire.model)
        text = await self._services.texts.of(info)
        ids, _ = await asyncio.to_thread(encode_prompt, wire.prompts[0], info, text)
        resp.media = {"input_tokens": len(ids)}
