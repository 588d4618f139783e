"""What the generating routes share: from a decoded body to a whole or a streamed reply."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from falcon.asgi import Request, Response

from helexa import logs
from helexa.errors import RequestError
from helexa.web.auth import key_of
from helexa.web.connection import SCOPE_KEY, Connection
from helexa.web.events import Usage
from helexa.web.generate import ClientGone, Generation
from helexa.web.middleware import context_of
from helexa.web.prepare import prepare
from helexa.web.request import ReplyMeta, WireRequest
from helexa.web.resources import streaming
from helexa.web.services import Services
from helexa.web.tracing import Asked, Outcome, Trace
from helexa.web.wire.reply import Reply, Vocabulary

log = logging.getLogger("helexa.web.request")

MakeReply = Callable[[ReplyMeta, Vocabulary], Reply]
CLIENT_CLOSED_REQUEST = 499  # nobody reads it; the access log does


async def answer(req: Request, resp: Response, services: Services, wire: WireRequest, prefix: str, make_reply: MakeReply) -> None:
    """Fills in the response. `prefix` starts the reply's id, which is also the engine's req_id."""
    headers = (req.get_header("traceparent") or "", req.get_header("tracestate") or "")
    operation = "text_completion" if prefix == "cmpl-" else "chat"
    trace = services.tracer.begin(Asked(operation, wire.model, context_of(req)[0], *headers))
    try:
        await _answer(req, resp, services, wire, prefix, make_reply, trace)
    except BaseException as error:
        trace.ended(None, error)
        raise


async def _answer(
    req: Request, resp: Response, services: Services, wire: WireRequest, prefix: str, make_reply: MakeReply, trace: Trace
) -> None:
    req_id, hex = context_of(req)
    info = await services.engine.model(wire.model)
    if info.pooling:
        raise RequestError("generation_unsupported", f"model `{info.name}` makes embeddings and generates nothing", "model")
    text = await services.texts.of(info)
    prompts = await asyncio.to_thread(prepare, wire, info, text, services.config.sampling)
    param = wire.options.format.param if wire.options.format is not None else "tools"
    for grammar in {request.params.grammar for request in prompts}:
        await services.grammars.check(grammar, param)
    meta = ReplyMeta(prefix + hex, info.name, int(time.time()), info.fingerprint, prompts, wire.shape, wire.options.logprobs)
    resp.set_header("x-helexa-seed", str(prompts[0].seed))

    generation = Generation(services.engine, meta.id, prompts, text, services.config.streaming.credit_tokens, key_of(req))
    record = _Record(req_id, meta, generation, trace)
    reply = make_reply(meta, text.tokenizer)
    connection: Connection = req.scope[SCOPE_KEY]
    watcher = connection.watch(generation.client_gone)
    handed_over = False
    try:
        await generation.start()
        if wire.shape.stream:
            stream = streaming.EventStream(generation, reply, services.config.streaming.keep_alive_s, record.ended)
            stream.watched_by(watcher)
            streaming.prepare(resp, stream)
            handed_over = True
            return
        async for batch in generation.events():
            for event in batch:
                reply.add(event)
        resp.media = reply.document(generation.usage())
        record.ended(None)
    except ClientGone as gone:
        resp.status = CLIENT_CLOSED_REQUEST
        record.ended(gone)
    except RequestError as error:
        record.ended(error)
        raise
    finally:
        if not handed_over:
            watcher.cancel()
            generation.close()


class _Record:
    """The one line the log gets of a request, and its trace: how it ended, its counts and times. Never its text."""

    def __init__(self, req_id: str, meta: ReplyMeta, generation: Generation, trace: Trace) -> None:
        self._req_id = req_id
        self._meta = meta
        self._generation = generation
        self._trace = trace
        self._began = time.monotonic()

    def ended(self, error: BaseException | None) -> None:
        counts: dict[str, object] = {"prompt_tokens": sum(len(request.prompt_ids) for request in self._meta.prompts)}
        usage: Usage | None = None
        with suppress(KeyError):
            usage = self._generation.usage()
            counts["output_tokens"] = usage.completion_tokens
        self._trace.ended(self._outcome(usage), error)
        if error is not None:
            counts["reason"] = getattr(error, "code", "client_gone")
        outcome = "request done" if error is None else "request failed"
        seconds = f"{time.monotonic() - self._began:.3f}"
        logs.event(log, outcome, req_id=self._req_id, id=self._meta.id, model=self._meta.model, **counts, seconds=seconds)

    def _outcome(self, usage: Usage | None) -> Outcome:
        first = self._meta.prompts[0]
        params = first.params
        parameters: dict[str, int | float] = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "frequency_penalty": params.frequency_penalty,
            "presence_penalty": params.presence_penalty,
            "seed": first.seed,
            "choice.count": first.n,
        }
        return Outcome(
            self._meta.id,
            self._meta.model,
            parameters,
            self._generation.times,
            sum(len(request.prompt_ids) for request in self._meta.prompts),
            None if usage is None else usage.completion_tokens,
            None if usage is None else usage.cached_tokens,
            self._generation.finish_reasons,
        )
