"""/v1/messages: a body to a WireRequest, events to Anthropic's `message` and its stream of blocks. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.text.grammar import OutputFormat
from helexa.web.events import Event, Finished, Started, TextDelta, Usage
from helexa.web.request import ReplyMeta, Shape, WireRequest
from helexa.web.wire import fields, tables
from helexa.web.wire.anthropic_prompt import parse_prompt, thinking_budget
from helexa.web.wire.fields import unknown
from helexa.web.wire.openai_common import options
from helexa.web.wire.output_format import response_format
from helexa.web.wire.reply import Block, Blocks, Document, Vocabulary, made_id

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

# The envelope's types, by HTTP status; what is not listed is the server's fault.
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def parse(body: Mapping[str, Any]) -> WireRequest:
    values = fields.parse(body, tables.MESSAGES)
    given = {**values, "stop": values.get("stop_sequences", []), "thinking_budget": thinking_budget(values)}
    return WireRequest(
        model=values["model"],
        prompts=[parse_prompt(values)],
        options=options(given, values["max_tokens"], format=_format(values.get("output_config"))),
        shape=Shape(stream=values.get("stream", False)),
    )


def parse_count(body: Mapping[str, Any]) -> WireRequest:
    """A body of /v1/messages/count_tokens; it is never generated from."""
    values = fields.parse(body, tables.COUNT_TOKENS)
    return WireRequest(values["model"], [parse_prompt(values)], options({}, None), Shape())


def _format(given: dict[str, Any] | None) -> OutputFormat | None:
    for name in given or {}:
        if name not in ("format", "effort"):
            raise unknown(f"output_config.{name}", dict.fromkeys(("format", "effort")))
    return response_format((given or {}).get("format"), "output_config.format")


def error_envelope(error: RequestError) -> Document:
    return {"type": "error", "error": {"type": ERROR_TYPES.get(error.status, "api_error"), "message": error.message}}


class MessageReply:
    """A Reply (reply.py). It has one choice; a block of the stream is complete when the next one starts."""

    named = True
    end = b""

    def __init__(self, meta: ReplyMeta, vocabulary: Vocabulary) -> None:
        self._meta = meta
        self._blocks = Blocks()
        self._finished: Finished | None = None

    # streamed

    def opening(self) -> list[Document]:
        prompt_tokens = sum(len(request.prompt_ids) for request in self._meta.prompts)
        usage = Usage(prompt_tokens, cached_tokens=0, completion_tokens=0)
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}
        return [{"type": "message_start", "message": message}]

    def chunks(self, event: Event) -> list[Document]:
        if isinstance(event, Started):
            return []
        if isinstance(event, Finished):
            self._finished = event
            return self._closed() if self._blocks.all else self._empty_text()
        if isinstance(event, TextDelta) and not event.text:
            return []
        closed = self._closed()
        block, new = self._blocks.take(event)
        documents = [*closed, self._start(block)] if new else []
        return [*documents, {"type": "content_block_delta", "index": block.index, "delta": _delta(block, block.parts[-1])}]

    def last_chunks(self, usage: Usage) -> list[Document]:
        counts = _usage(usage)
        return [{"type": "message_delta", "delta": self._stop(), "usage": counts}, {"type": "message_stop"}]

    def failure(self, error: RequestError) -> Document:
        return error_envelope(error)

    def _closed(self) -> list[Document]:
        """The end of the last block, if there is one."""
        return [{"type": "content_block_stop", "index": len(self._blocks.all) - 1}] if self._blocks.all else []

    def _start(self, block: Block) -> Document:
        empty = {**self._content(block), **_EMPTY[block.kind]}
        return {"type": "content_block_start", "index": block.index, "content_block": empty}

    def _empty_text(self) -> list[Document]:
        block, _ = self._blocks.take(TextDelta(0, "", []))
        return [self._start(block), *self._closed()]

    # whole

    def add(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._finished = event
        elif not isinstance(event, Started) and not (isinstance(event, TextDelta) and not event.text):
            self._blocks.take(event)

    def document(self, usage: Usage) -> Document:
        if not self._blocks.all:
            self._blocks.take(TextDelta(0, "", []))
        content = [self._content(block) for block in self._blocks.all]
        return {**self._head(), "content": content, **self._stop(), "usage": _usage(usage)}

    # parts

    def _head(self) -> Document:
        return {"id": self._meta.id, "type": "message", "role": "assistant", "model": self._meta.model}

    def _content(self, block: Block) -> Document:
        if block.kind == "text":
            return {"type": "text", "text": block.text}
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        id = made_id("toolu_", self._meta.id, block.index)
        return {"type": "tool_use", "id": id, "name": block.name, "input": json.loads(block.text)}

    def _stop(self) -> Document:
        assert self._finished is not None
        stop = self._finished.stop_string
        reason = "stop_sequence" if stop is not None else STOP_REASONS[self._finished.reason]
        return {"stop_reason": reason, "stop_sequence": stop}


_EMPTY: dict[str, Document] = {"text": {"text": ""}, "reasoning": {"thinking": ""}, "call": {"input": {}}}


def _delta(block: Block, text: str) -> Document:
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "input_json_delta", "partial_json": text}


def _usage(usage: Usage) -> Document:
    """Anthropic counts the tokens that came out of the cache by themselves."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }
