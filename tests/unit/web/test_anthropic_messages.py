"""/v1/messages, without a server: bodies to requests, events to Anthropic's documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from byte_text import ByteTokenizer
from wire_replies import meta, scripted, strict, thoughtful, transcript, whole

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, Started, TextDelta
from helexa.web.request import ChatPrompt, Shape, ToolUse
from helexa.web.wire.anthropic_messages import MessageReply, error_envelope, parse, parse_count

TOOL = {"name": "weather", "description": "Says it.", "input_schema": {"type": "object"}}
HI = [{"role": "user", "content": "hi"}]
STOPPED: list[Event] = [Started(0), TextDelta(0, "a", []), Finished(0, "stop", [], [1], 2, 1, stop_string="\n")]
EMPTY: list[Event] = [Started(0), Finished(0, "stop", [256], [256], 2, 1)]
CUT: list[Event] = [Started(0), TextDelta(0, "a", []), Finished(0, "length", [], [1], 2, 1)]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, "max_tokens": 9, **fields}


def reply() -> MessageReply:
    return MessageReply(meta(Shape(stream=True)), ByteTokenizer())


def chat(given: dict[str, Any]) -> ChatPrompt:
    (prompt,) = parse(given).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt


@pytest.mark.parametrize(
    ("name", "events"), [("messages", scripted()), ("messages_thoughtful", thoughtful(2)), ("messages_empty", EMPTY)]
)
def test_transcripts(golden: Callable[[str, str], None], name: str, events: list[Event]) -> None:
    """Stream and document as in the golden files; the package's types take both without coercion, and know every field."""
    text = transcript(reply(), events)
    golden(f"{name}_stream.sse", text)
    frames = [frame.split("\n") for frame in text.split("\n\n") if frame]
    for event, data in frames:
        document = data.removeprefix("data: ")
        assert event == f"event: {json.loads(document)['type']}" and strict(RawMessageStreamEvent, document) == []
    document = whole(reply(), events)
    golden(f"{name}.json", json.dumps(document, indent=1) + "\n")
    assert strict(Message, json.dumps(document)) == []


@pytest.mark.parametrize("events", [scripted(), thoughtful(2), EMPTY, STOPPED, CUT])
def test_the_stream_builds_the_document(events: list[Event]) -> None:
    """Blocks put together as the package does it, by index, are the document's content; stop and usage are the same."""
    lines = [line.removeprefix("data: ") for line in transcript(reply(), events).splitlines() if line.startswith("data: ")]
    message, content, parts = {}, list[dict[str, Any]](), dict[int, str]()
    for document in map(json.loads, lines):
        if document["type"] == "message_start":
            message = document["message"]
        elif document["type"] == "content_block_start":
            assert document["index"] == len(content)
            content.append(document["content_block"])
        elif document["type"] == "content_block_delta":
            (text,) = [value for key, value in document["delta"].items() if key != "type"]
            parts[document["index"]] = parts.get(document["index"], "") + text
        elif document["type"] == "message_delta":
            message |= {**document["delta"], "usage": document["usage"]}
    for index, block in enumerate(content):
        key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        block[key] = json.loads(parts[index]) if key == "input" else parts.get(index, "")
    assert {**message, "content": content} == whole(reply(), events)


@pytest.mark.parametrize(
    ("events", "reason", "sequence"),
    [
        (scripted(), "end_turn", None),
        (thoughtful(), "tool_use", None),
        (STOPPED, "stop_sequence", "\n"),
        (CUT, "max_tokens", None),
    ],
)
def test_stop_reasons(events: list[Event], reason: str, sequence: str | None) -> None:
    document = whole(reply(), events)
    assert (document["stop_reason"], document["stop_sequence"]) == (reason, sequence)


def test_cached_tokens_are_counted_apart() -> None:
    assert whole(reply(), scripted())["usage"] == {
        "input_tokens": 1,
        "output_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
    }


def test_a_conversation_with_tools() -> None:
    """System text, blocks, calls and results become messages; a result comes before the text beside it, and is named."""
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I ask"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "A"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and"},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
            ],
        },
    ]
    prompt = chat(body(system=[{"type": "text", "text": "Be brief."}], messages=messages, tools=[TOOL]))
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"city": "A"}}}
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "I ask", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "sun", "name": "weather"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
        {"role": "user", "content": "and"},
    ]


@pytest.mark.parametrize(
    ("choice", "forced", "parallel"),
    [
        ({"type": "auto"}, [], True),
        ({"type": "any"}, ["weather"], True),
        ({"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, ["weather"], False),
    ],
)
def test_tool_choices(choice: dict[str, Any], forced: list[str], parallel: bool) -> None:
    use = chat(body(tools=[TOOL], tool_choice=choice)).tools
    assert isinstance(use, ToolUse) and (use.forced, use.parallel) == (forced, parallel)
    assert chat(body(tools=[TOOL], tool_choice={"type": "none"})).tools is None


def test_thinking_is_a_bound() -> None:
    """Disabled is none at all; an effort is a bound where no other is given."""
    budget = [
        parse(body(**fields)).options.thinking_budget
        for fields in (
            {},
            {"thinking": {"type": "disabled"}},
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            {"output_config": {"effort": "max"}},
        )
    ]
    assert budget == [None, 0, 2000, 1024, None]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": None}, "invalid_value", "max_tokens"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "unknown_parameter", "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "vision_unsupported",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}]},
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"name": "a b"}]}, "invalid_value", "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "sometimes"}}, "invalid_value", "tool_choice.type"),
        ({"thinking": {"type": "loudly"}}, "invalid_value", "thinking.type"),
        ({"thinking": {"budget": 3}}, "unknown_parameter", "thinking.budget"),
        ({"mcp_servers": [{}]}, "unsupported_parameter", "mcp_servers"),
    ],
)
def test_bad_bodies_name_their_place(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body(**fields))
    assert (caught.value.code, caught.value.param) == (code, param)


def test_counting_needs_no_length() -> None:
    """A count's body has no max_tokens; what is generated with is refused there."""
    assert parse_count({"model": "m", "messages": HI, "system": "s", "tools": [TOOL]}).prompts
    with pytest.raises(RequestError, match="temperature"):
        parse_count({"model": "m", "messages": HI, "temperature": 1})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_value", "invalid_request_error"),
        ("model_not_found", "not_found_error"),
        ("body_too_large", "request_too_large"),
        ("queue_full", "overloaded_error"),
        ("internal_error", "api_error"),
    ],
)
def test_error_types(code: str, kind: str) -> None:
    assert error_envelope(RequestError(code, "m")) == {"type": "error", "error": {"type": kind, "message": "m"}}
