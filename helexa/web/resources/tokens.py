"""/tokenize and /detokenize: text to the model's token ids and back. /tokenizer_info: what evaluation harnesses ask first."""

from __future__ import annotations

import asyncio

from falcon.asgi import Request, Response

from helexa.web.body import read_object
from helexa.web.prepare import check_ids, decode, encode_prompt
from helexa.web.services import Services
from helexa.web.wire import tokens


class Tokenize:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        request = tokens.parse_tokenize(await read_object(req, self._services.config.server.max_body_bytes))
        info = await self._services.engine.model(request.model)
        text = await self._services.texts.of(info)
        ids, _ = await asyncio.to_thread(encode_prompt, request.prompt, info, text)
        resp.media = tokens.tokenized(request, ids, info.context, text.tokenizer)


class Detokenize:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_post(self, req: Request, resp: Response) -> None:
        model, ids = tokens.parse_detokenize(await read_object(req, self._services.config.server.max_body_bytes))
        info = await self._services.engine.model(model)
        check_ids("tokens", ids, info.vocab)
        resp.media = tokens.detokenized(decode(ids, await self._services.texts.of(info)))


class TokenizerInfo:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def on_get(self, req: Request, resp: Response) -> None:
        info = await self._services.engine.model(req.get_param("model"))
        text = await self._services.texts.of(info)
        resp.media = tokens.tokenizer_info(text.tokenizer, text.chat.source if text.chat is not None else None, info.context)
