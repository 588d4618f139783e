"""/v1/chat/completions: a body to a WireRequest, events to `chat.completion` and `chat.completion.chunk` documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, Started, TextDelta, Token, Usage
from helexa.web.request import ChatPrompt, ReplyMeta, WireRequest
from helexa.web.wire import fields
from helexa.web.wire.chat_messages import parse_messages
from helexa.web.wire.openai_common import (
    Vocabulary,
    candidate_text,
    options,
    sampled_text,
    shape,
    token_sha,
    tokens_with_logprobs,
    usage_document,
)


def parse(body: Mapping[str, Any]) -> WireRequest:
    values = fields.parse(body, fields.CHAT)
    return WireRequest(
        model=values["model"],
        prompts=[ChatPrompt(parse_messages(values["messages"]))],
        options=options(values, _max_tokens(values), _logprobs(values)),
        shape=shape(values),
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
    tokens: list[Token] = field(default_factory=list)
    finished: Finished | None = None


class ChatReply:
    """A Reply (openai_common.py)."""

    def __init__(self, meta: ReplyMeta, vocabulary: Vocabulary) -> None:
        self._meta = meta
        self._vocabulary = vocabulary
        self._choices = [_Choice() for request in meta.prompts for _ in request.seeds]
        self._first = True

    # streamed

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, Started):
            return [self._chunk(event.choice, {"role": "assistant", "content": ""}, [], None)]
        if isinstance(event, TextDelta):
            wants_tokens = self._meta.shape.token_ids or bool(tokens_with_logprobs(event.tokens))
            if not event.text and not (event.tokens and wants_tokens):
                return []
            return [self._chunk(event.choice, {"content": event.text}, event.tokens, None)]
        return [self._chunk(event.choice, {}, [Token(id) for id in event.tail], event)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        if not self._meta.shape.include_usage:
            return []
        return [{**self._head("chat.completion.chunk"), "choices": [], "usage": usage_document(usage)}]

    def _chunk(self, choice: int, delta: dict[str, Any], tokens: list[Token], finished: Finished | None) -> dict[str, Any]:
        shape = self._meta.shape
        entry: dict[str, Any] = {
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
        if isinstance(event, TextDelta):
            choice.text.append(event.text)
            choice.tokens += event.tokens
        elif isinstance(event, Finished):
            choice.finished = event

    def document(self, usage: Usage) -> dict[str, Any]:
        document = {
            **self._head("chat.completion"),
            "choices": [self._whole(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_document(usage),
        }
        if self._meta.shape.token_ids:
            document["prompt_token_ids"] = self._meta.prompts[0].prompt_ids
        return document

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        assert choice.finished is not None
        entry: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finished.reason,
        }
        if self._meta.shape.token_ids:
            entry["token_ids"] = choice.finished.ids
        if self._meta.shape.token_sha:
            entry["token_sha"] = token_sha(choice.finished.ids)
        return entry

    def _head(self, kind: str) -> dict[str, Any]:
        meta = self._meta
        head = {
            "id": meta.id,
            "object": kind,
            "created": meta.created,
            "model": meta.model,
            "system_fingerprint": meta.fingerprint,
        }
        return {**head, "service_tier": "default"} if meta.shape.service_tier else head

    def _logprobs(self, tokens: list[Token]) -> dict[str, Any] | None:
        scored = tokens_with_logprobs(tokens)
        if self._meta.logprobs < 0 or not scored:
            return None
        return {"content": [self._logprob(token) for token in scored], "refusal": None}

    def _logprob(self, token: Token) -> dict[str, Any]:
        assert token.logprobs is not None
        best = zip(token.logprobs.ids, token.logprobs.logprobs, strict=True)
        top = [
            self._entry(candidate_text(self._vocabulary, id), id, logprob) for id, logprob in list(best)[: self._meta.logprobs]
        ]
        own = self._entry(sampled_text(self._vocabulary, token.id), token.id, token.logprobs.logprob)
        return {**own, "top_logprobs": top}

    def _entry(self, text: str, id: int, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(self._vocabulary.token_bytes(id))}
