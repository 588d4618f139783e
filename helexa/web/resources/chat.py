"""/v1/chat/completions."""

from __future__ import annotations

from falcon.asgi import Request, Response

from helexa.web.body import read_object
from helexa.web.resources.generating import answer
from helexa.web.services import Services
from helexa.web.wire import openai_chat


class ChatCompletions:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        body = await read_object(req, self._services.config.server.max_body_bytes)
        wire = openai_chat.parse(body, include_thinking=_wants_thinking(req))
        await answer(req, resp, self._services, wire, "chatcmpl-", openai_chat.ChatReply)


def _wants_thinking(req: Request) -> bool:
    """`x-include-thinking: true` leaves reasoning in the text, between the model's own markers."""
    return (req.get_header("x-include-thinking") or "").strip().lower() == "true"
