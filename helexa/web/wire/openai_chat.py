"""/v1/chat/completions: a body to a WireRequest, events to `chat.completion` and `chat.completion.chunk` documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, ReasoningDelta, Started, TextDelta, Token, ToolCall, Usage
from helexa.web.request import ChatPrompt, ReplyMeta, WireRequest
from helexa.web.wire import fields, tables
from helexa.web.wire.chat_messages import parse_messages
from helexa.web.wire.openai_common import (
    error_document,
    logprob_document,
    options,
    shape,
    token_sha,
    tokens_with_logprobs,
    usage_document,
)
from helexa.web.wire.reply import DONE, Document, Vocabulary, made_id
from helexa.web.wire.tools import chat_tools


def parse(body: Mapping[str, Any], include_thinking: bool = False) -> WireRequest:
    values = fields.parse(body, tables.CHAT)
    prompt = ChatPrompt(
        parse_messages(values["messages"]),
        chat_tools(values),
        values.get("chat_template_kwargs", {}),
        values.get("reasoning_effort"),
    )
    return WireRequest(
        model=values["model"],
        prompts=[prompt],
        options=options(values, _max_tokens(values), _logprobs(values)),
        shape=shape(values, include_thinking),
    )


def _max_tokens(values: Mapping[str, Any]) -> int | None:
    old, new = values.get("max_tokens"), values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise RequestError(
            "invalid_value", f"`max_tokens` {old} and `max_completion_tokens` {new} contradict each other; give one", "max_tokens"
        )
    return new if old is None else old


def _logprobs(values: Mapping[str, Any]) -> int:
    wanted, top = values.get("logprobs", False), values.get("top_logprobs")
    if top and not wanted:
        raise RequestError("invalid_value", "`top_logprobs` needs `logprobs`: true", "top_logprobs")
    return (top or 0) if wanted else -1


@dataclass
class _Choice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finished: Finished | None = None


class ChatReply:
    """A Reply (reply.py)."""

    named = False
    end = DONE

    def __init__(self, meta: ReplyMeta, vocabulary: Vocabulary) -> None:
        self._meta = meta
        self._vocabulary = vocabulary
        self._choices = [_Choice() for request in meta.prompts for _ in request.seeds]
        self._first = True
        self._reasoning_tokens = 0

    # streamed

    def opening(self) -> list[Document]:
        return []

    def chunks(self, event: Event) -> list[Document]:
        if isinstance(event, Started):
            return [self._chunk(event.choice, {"role": "assistant", "content": ""}, [], None)]
        if isinstance(event, Finished):
            return [self._chunk(event.choice, {}, [Token(id) for id in event.tail], event)]
        if isinstance(event, ToolCall):
            return [self._chunk(event.choice, {"tool_calls": [{"index": event.index, **self._call(event)}]}, event.tokens, None)]
        wants_tokens = self._meta.shape.token_ids or bool(tokens_with_logprobs(event.tokens))
        if not event.text and not (event.tokens and wants_tokens):
            return []
        if isinstance(event, ReasoningDelta):
            self._reasoning_tokens += len(event.tokens)
            return [self._chunk(event.choice, {"reasoning_content": event.text}, event.tokens, None)]
        return [self._chunk(event.choice, {"content": event.text}, event.tokens, None)]

    def last_chunks(self, usage: Usage) -> list[Document]:
        if not self._meta.shape.include_usage:
            return []
        document = usage_document(usage, self._reasoning_tokens)
        return [{**self._head("chat.completion.chunk"), "choices": [], "usage": document}]

    def failure(self, error: RequestError) -> Document:
        return error_document(error)

    def _chunk(self, choice: int, delta: Document, tokens: list[Token], finished: Finished | None) -> Document:
        shape = self._meta.shape
        entry: Document = {
            "index": choice,
            "delta": delta,
            "logprobs": self._logprobs(tokens),
            "finish_reason": finished.reason if finished else None,
        }
        if shape.token_ids:
            entry["token_ids"] = [token.id for token in tokens]
        if shape.token_sha and finished:
            entry["token_sha"] = token_sha(finished.ids)
        document = {**self._head("chat.completion.chunk"), "choices": [entry]}
        if shape.include_usage:
            document["usage"] = None
        if shape.token_ids and self._first:
            document["prompt_token_ids"] = self._meta.prompts[0].prompt_ids
        self._first = False
        return document

    # whole

    def add(self, event: Event) -> None:
        choice = self._choices[event.choice]
        if isinstance(event, Finished):
            choice.finished = event
        elif not isinstance(event, Started):
            choice.tokens += event.tokens
            if isinstance(event, TextDelta):
                choice.text.append(event.text)
            elif isinstance(event, ReasoningDelta):
                choice.reasoning.append(event.text)
                self._reasoning_tokens += len(event.tokens)
            else:
                choice.calls.append(self._call(event))

    def document(self, usage: Usage) -> Document:
        document = {
            **self._head("chat.completion"),
            "choices": [self._whole(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_document(usage, self._reasoning_tokens),
        }
        if self._meta.shape.token_ids:
            document["prompt_token_ids"] = self._meta.prompts[0].prompt_ids
        return document

    def _whole(self, index: int, choice: _Choice) -> Document:
        assert choice.finished is not None
        entry: Document = {
            "index": index,
            "message": self._message(choice),
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finished.reason,
        }
        if self._meta.shape.token_ids:
            entry["token_ids"] = choice.finished.ids
        if self._meta.shape.token_sha:
            entry["token_sha"] = token_sha(choice.finished.ids)
        return entry

    def _message(self, choice: _Choice) -> Document:
        """Content is null beside calls where there is no text."""
        text = "".join(choice.text)
        message: Document = {"role": "assistant", "content": text if text or not choice.calls else None, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["tool_calls"] = choice.calls
        return message

    def _call(self, event: ToolCall) -> Document:
        id = made_id("call_", self._meta.id, event.choice, event.index)
        return {"id": id, "type": "function", "function": {"name": event.name, "arguments": event.arguments}}

    def _head(self, kind: str) -> Document:
        meta = self._meta
        head = {
            "id": meta.id,
            "object": kind,
            "created": meta.created,
            "model": meta.model,
            "system_fingerprint": meta.fingerprint,
        }
        return {**head, "service_tier": "default"} if meta.shape.service_tier else head

    def _logprobs(self, tokens: list[Token]) -> Document | None:
        scored = tokens_with_logprobs(tokens)
        if self._meta.logprobs < 0 or not scored:
            return None
        entries = [logprob_document(self._vocabulary, token, self._meta.logprobs) for token in scored]
        return {"content": entries, "refusal": None}
