"""/v1/embeddings, from models that make them."""

from __future__ import annotations

import asyncio
import logging

from falcon.asgi import Request, Response

from helexa import logs
from helexa.errors import RequestError
from helexa.web.auth import key_of
from helexa.web.body import read_object
from helexa.web.connection import SCOPE_KEY, Connection
from helexa.web.embed import Who, embed
from helexa.web.middleware import context_of
from helexa.web.prepare import encode_prompt
from helexa.web.resources.generating import CLIENT_CLOSED_REQUEST
from helexa.web.services import Services
from helexa.web.wire import openai_embeddings
from helexa.web.wire.openai_embeddings import EmbeddingsRequest
from ipc.messages import ModelInfo

log = logging.getLogger("helexa.web.request")


class Embeddings:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        asked = openai_embeddings.parse(await read_object(req, self._services.config.server.max_body_bytes))
        info = await self._services.engine.model(asked.model)
        if not info.pooling:
            raise RequestError("embeddings_unsupported", f"model `{info.name}` generates text and makes no embeddings", "model")
        prompts = await self._encoded(asked, info)
        req_id, hex = context_of(req)

        def gone() -> None:
            work.cancel()

        work = asyncio.create_task(embed(self._services.engine, f"embd-{hex}", info, prompts, Who(key_of(req), asked.priority)))
        connection: Connection = req.scope[SCOPE_KEY]
        async with connection.watching(gone):
            await asyncio.wait([work])
        if work.cancelled():
            resp.status = CLIENT_CLOSED_REQUEST
            return
        tokens = sum(map(len, prompts))
        resp.media = openai_embeddings.document(asked, info.name, work.result(), tokens)
        logs.event(log, "request done", req_id=req_id, id=f"embd-{hex}", model=info.name, prompt_tokens=tokens)

    async def _encoded(self, asked: EmbeddingsRequest, info: ModelInfo) -> list[list[int]]:
        """Raises RequestError for a prompt that is empty, or that the context cannot hold."""
        text = await self._services.texts.of(info)
        prompts = []
        for prompt in asked.prompts:
            ids, _ = await asyncio.to_thread(encode_prompt, prompt, info, text)
            if not ids:
                raise RequestError("empty_prompt", "an input has no tokens; leave it out", "input")
            if len(ids) >= info.context:
                message = (
                    f"an input has {len(ids)} tokens; the model's context is {info.context}, one of which is the end: shorten it"
                )
                raise RequestError("context_length_exceeded", message, "input")
            prompts.append(ids)
        return prompts
