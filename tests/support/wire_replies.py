"""Replies for tests of the wire formats: fixed ids and times, scripted events, and the openai package as a strict judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from helexa.web.events import Event, Finished, ReasoningDelta, Started, TextDelta, Token, ToolCall, Usage
from helexa.web.request import GenerationRequest, ReplyMeta, Shape
from helexa.web.wire.reply import Reply, frame
from ipc.messages import SamplingParams, TokenLogprobs

USAGE = Usage(prompt_tokens=2, cached_tokens=1, completion_tokens=4)


def meta(shape: Shape, logprobs: int = -1, n: int = 1, prompts: Sequence[str] = ("Hi",)) -> ReplyMeta:
    requests = [
        GenerationRequest("m", list(prompt.encode()), prompt, SamplingParams(max_tokens=8), 7, list(range(n)), [])
        for prompt in prompts
    ]
    return ReplyMeta("reply-1", "m", 1_700_000_000, "fp-test", requests, shape, logprobs)


def scripted(choices: int = 1, scored: bool = False) -> list[Event]:
    """Each choice says `A` and a two-byte character, then ends; the choices take turns."""

    def token(id: int, chars: int, best: list[int]) -> Token:
        logprobs = TokenLogprobs(-0.25, best, [-0.25, -1.5]) if scored else None
        return Token(id, logprobs, chars)

    events: list[Event] = [Started(choice) for choice in range(choices)]
    events += [TextDelta(choice, "A", [token(65, 1, [65, 66])]) for choice in range(choices)]
    events += [TextDelta(choice, "", [token(195, 0, [195, 256])]) for choice in range(choices)]
    events += [TextDelta(choice, "é", [token(169, 1, [169, 66])]) for choice in range(choices)]
    events += [Finished(choice, "stop", [256], [65, 195, 169, 256], 2, 1) for choice in range(choices)]
    return events


def thoughtful(calls: int = 1) -> list[Event]:
    """One choice thinks, speaks, and calls functions."""
    events: list[Event] = [
        Started(0),
        ReasoningDelta(0, "Let me ", [Token(1), Token(2)]),
        ReasoningDelta(0, "see.", [Token(3)]),
        TextDelta(0, "I", [Token(73, None, 1)]),
        TextDelta(0, " ask", [Token(74, None, 4)]),
    ]
    events += [ToolCall(0, n, "weather", '{"city": "Paris"}', [Token(80 + n)]) for n in range(calls)]
    return [*events, Finished(0, "tool_calls" if calls else "stop", [256], [1, 2, 3, 73, 74, *range(80, 80 + calls), 256], 2, 1)]


def transcript(reply: Reply, events: list[Event], usage: Usage = USAGE) -> str:
    """The stream as it goes over the wire."""
    documents = [*reply.opening(), *(chunk for event in events for chunk in reply.chunks(event)), *reply.last_chunks(usage)]
    return (b"".join(frame(document, reply.named) for document in documents) + reply.end).decode()


def whole(reply: Reply, events: list[Event], usage: Usage = USAGE) -> dict[str, Any]:
    for event in events:
        reply.add(event)
    return reply.document(usage)


def strict(kind: Any, raw: bytes | str) -> list[str]:
    """Validates the raw JSON without coercion; returns the path of every field that the type does not know."""
    return _extras(TypeAdapter(kind).validate_json(raw, strict=True), "")


def _extras(value: Any, path: str) -> list[str]:
    if isinstance(value, BaseModel):
        known = {name: getattr(value, name) for name in value.model_fields_set if name in type(value).model_fields}
        own = [f"{path}.{name}" for name in value.model_extra or {}]
        return own + [extra for name, item in known.items() for extra in _extras(item, f"{path}.{name}")]
    if isinstance(value, (list, tuple)):
        return [extra for index, item in enumerate(value) for extra in _extras(item, f"{path}[{index}]")]
    return []
