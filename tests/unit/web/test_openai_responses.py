"""/v1/responses, without a server: bodies to requests, events to a response and its numbered stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from byte_text import ByteTokenizer
from openai.types.responses import Response, ResponseStreamEvent
from wire_replies import USAGE, meta, scripted, strict, thoughtful, transcript, whole

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, Started, TextDelta
from helexa.web.request import ChatPrompt, ReplyMeta, Shape
from helexa.web.wire.openai_responses import ResponseReply, parse

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
EMPTY: list[Event] = [Started(0), Finished(0, "stop", [256], [256], 2, 1)]
CUT: list[Event] = [Started(0), TextDelta(0, "a", []), Finished(0, "length", [], [1], 2, 1)]
SURPLUS = {".frequency_penalty", ".presence_penalty", ".store"}  # named by the Open Responses schema, unknown to the package

# Every key that the Open Responses schema wants, null or not.
KEYS = """
    id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools
    tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning
    usage max_output_tokens max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key
"""


def asked(logprobs: int = -1, **fields: Any) -> ReplyMeta:
    return meta(parse({"model": "m", "input": "hi", "stream": True, **fields}).shape, logprobs)


def reply(logprobs: int = -1, **fields: Any) -> ResponseReply:
    return ResponseReply(asked(logprobs, **fields), ByteTokenizer())


def messages_of(**fields: Any) -> list[dict[str, Any]]:
    (prompt,) = parse({"model": "m", "input": "hi", **fields}).prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def stream_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize(
    ("name", "events", "logprobs", "fields"),
    [
        ("responses", scripted(), -1, {}),
        (
            "responses_thoughtful",
            thoughtful(2),
            -1,
            {"tools": [TOOL], "instructions": "Be brief.", "reasoning": {"effort": "low"}},
        ),
        ("responses_logprobs", scripted(scored=True), 2, {"top_logprobs": 2, "metadata": {"a": "b"}}),
        ("responses_empty", EMPTY, -1, {}),
        ("responses_cut", CUT, -1, {"max_output_tokens": 1}),
    ],
)
def test_transcripts(
    golden: Callable[[str, str], None], name: str, events: list[Event], logprobs: int, fields: dict[str, Any]
) -> None:
    """Stream and document as in the golden files; the package's types take all without coercion; numbers follow each other."""
    text = transcript(reply(logprobs, **fields), events)
    golden(f"{name}_stream.sse", text)
    for number, frame in enumerate(frame for frame in text.split("\n\n") if frame):
        event, data = frame.split("\n")
        document = json.loads(data.removeprefix("data: "))
        assert event == f"event: {document['type']}" and document["sequence_number"] == number
        assert {path.removeprefix(".response") for path in strict(ResponseStreamEvent, json.dumps(document))} <= {
            *SURPLUS,
            ".name",
        }
    document = whole(reply(logprobs, **fields), events)
    golden(f"{name}.json", json.dumps(document, indent=1) + "\n")
    assert set(strict(Response, json.dumps(document))) == SURPLUS
    assert set(KEYS.split()) <= set(document)


@pytest.mark.parametrize("events", [scripted(), thoughtful(2), EMPTY, CUT])
def test_the_stream_builds_the_document(events: list[Event]) -> None:
    """Items are added, filled and done in order, under one id each; put together they are the response that ends the stream."""
    documents = stream_of(transcript(reply(), events))
    items: dict[int, dict[str, Any]] = {}
    deltas: dict[int, str] = {}
    open_item: int | None = None
    for document in documents[2:-1]:
        index = document["output_index"]
        if document["type"] == "response.output_item.added":
            assert open_item is None and index == len(items)
            items[index], open_item = document["item"], index
            continue
        assert index == open_item and document.get("item_id", items[index]["id"]) == items[index]["id"]
        if document["type"].endswith(".delta"):
            deltas[index] = deltas.get(index, "") + document["delta"]
        elif document["type"] == "response.output_item.done":
            items[index], open_item = document["item"], None
    last = documents[-1]["response"]
    assert last == whole(reply(), events) and last["output"] == list(items.values())
    for index, item in items.items():
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert text == deltas.get(index, "")
    assert [document["response"]["usage"] for document in documents[:2]] == [None, None]


def test_a_cut_reply_is_incomplete() -> None:
    """As a whole, and in its last item."""
    document = whole(reply(), CUT)
    assert document["status"] == "incomplete" and document["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in document["output"]] == ["incomplete"]
    assert whole(reply(), thoughtful())["completed_at"] == USAGE.completed_at


def test_an_error_is_both_flat_and_an_object() -> None:
    """The package raises on the object, its type has the flat fields."""
    document = reply().failure(RequestError("generation_failed", "NaN"))
    assert document["type"] == "error" and document["code"] == document["error"]["code"] == "generation_failed"
    assert set(strict(ResponseStreamEvent, json.dumps(document))) <= {".error"}


def test_items_become_messages() -> None:
    """Calls and reasoning join the assistant's message beside them; results are named after their calls."""
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I ask", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "id": "fc_1",
            "name": "weather",
            "arguments": '{"city": "A"}',
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "A"}}}
    assert messages_of(input=items, instructions="First.") == [
        {"role": "system", "content": "First."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "I ask", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun", "name": "weather"},
    ]
    assert messages_of() == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"previous_response_id": "resp_1"}, "chained_conversation_not_supported", "previous_response_id"),
        ({"input": []}, "empty_prompt", "input"),
        ({"input": [3]}, "invalid_value", "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "vision_unsupported", "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "invalid_value", "input[0].id"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "invalid_value", "text.format.schema"),
        ({"text": {"verbosity": "high"}}, "unsupported_parameter", "text.verbosity"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
        ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include"),
        ({"store": True}, "invalid_value", "store"),
        ({"background": True}, "invalid_value", "background"),
        ({"truncation": "auto"}, "invalid_value", "truncation"),
    ],
)
def test_bad_bodies_name_their_place(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse({"model": "m", "input": "hi", **fields})
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.status == 400


def test_allowed_tools() -> None:
    """A choice among some of the tools offers only those."""
    other = {**TOOL, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    (prompt,) = parse({"model": "m", "input": "hi", "tools": [TOOL, other], "tool_choice": choice}).prompts
    assert isinstance(prompt, ChatPrompt) and prompt.tools is not None
    assert [tool.name for tool in prompt.tools.tools] == prompt.tools.forced == ["other"]
    assert prompt.tools.tools[0].strict


def test_the_shape_echoes_the_request() -> None:
    """With defaults spelled out."""
    document = whole(reply(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, top_p=0.5), scripted())
    assert document["tools"] == [{"description": None, **TOOL}] and document["tool_choice"] == "required"
    assert document["parallel_tool_calls"] is False and document["top_p"] == 0.5 and document["temperature"] == 1.0
    assert Shape(stream=True, echoed=asked().shape.echoed) == asked().shape
