"""/v1/chat/completions, without a server: bodies to requests, events to documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from byte_text import ByteTokenizer
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from wire_replies import meta, scripted, strict, thoughtful, transcript, whole

from helexa.errors import RequestError
from helexa.web.request import ChatPrompt, Shape
from helexa.web.wire.openai_chat import ChatReply, parse

MESSAGES = [{"role": "user", "content": "hi"}]
FULL = Shape(stream=True, include_usage=True, token_ids=True, token_sha=True, service_tier=True)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES, **fields}


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body(**fields))
    return caught.value


@pytest.mark.parametrize(
    ("name", "shape", "logprobs", "n"),
    [
        ("chat_stream.sse", Shape(stream=True), -1, 1),
        ("chat_stream_usage_two_choices.sse", Shape(stream=True, include_usage=True), -1, 2),
        ("chat_stream_everything.sse", FULL, 2, 1),
    ],
)
def test_streamed_transcript(golden: Callable[[str, str], None], name: str, shape: Shape, logprobs: int, n: int) -> None:
    """The whole stream, as in the golden file; every chunk is one that the openai package's types take without coercion."""
    text = transcript(ChatReply(meta(shape, logprobs, n), ByteTokenizer()), scripted(n, scored=logprobs >= 0))
    golden(name, text)
    frames = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    allowed = {".choices[0].token_ids", ".choices[0].token_sha", ".prompt_token_ids"} if shape.token_ids else set()
    for frame in frames[:-1]:
        assert set(strict(ChatCompletionChunk, frame)) <= allowed


@pytest.mark.parametrize(("name", "shape", "logprobs"), [("chat.json", Shape(), -1), ("chat_everything.json", FULL, 2)])
def test_whole_document(golden: Callable[[str, str], None], name: str, shape: Shape, logprobs: int) -> None:
    """The document of a reply that is not streamed."""
    document = whole(ChatReply(meta(shape, logprobs, 2), ByteTokenizer()), scripted(2, scored=logprobs >= 0))
    golden(name, json.dumps(document, indent=1) + "\n")
    unknown = strict(ChatCompletion, json.dumps(document))
    assert all("token" in path for path in unknown) and (not unknown or shape.token_ids)


def test_reasoning_and_calls(golden: Callable[[str, str], None]) -> None:
    """Beside the text: a field of its own, and calls whose id, type and name come once; the types know all but the reasoning."""
    text = transcript(ChatReply(meta(Shape(stream=True, include_usage=True)), ByteTokenizer()), thoughtful(2))
    golden("chat_thoughtful_stream.sse", text)
    frames = [line.removeprefix("data: ") for line in text.split("\n\n") if line and "[DONE]" not in line]
    assert {path for frame in frames for path in strict(ChatCompletionChunk, frame)} == {".choices[0].delta.reasoning_content"}
    document = whole(ChatReply(meta(Shape()), ByteTokenizer()), thoughtful(2))
    golden("chat_thoughtful.json", json.dumps(document, indent=1) + "\n")
    assert strict(ChatCompletion, json.dumps(document)) == [".choices[0].message.reasoning_content"]
    message = document["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "I ask")
    assert document["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    streamed = [
        call for frame in frames for choice in json.loads(frame)["choices"] for call in choice["delta"].get("tool_calls", [])
    ]
    assert [{key: value for key, value in call.items() if key != "index"} for call in streamed] == message["tool_calls"]
    assert [call["index"] for call in streamed] == [0, 1] and len({call["id"] for call in streamed}) == 2


def test_a_conversation_with_tools() -> None:
    """Calls come back with their arguments as objects, results with their ids; text that is no object is kept."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    odd = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "none"}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call, odd], "reasoning_content": "hm"}
    request = parse(body(messages=[*MESSAGES, assistant, {"role": "tool", "tool_call_id": "c1", "content": "sun"}]))
    assert isinstance(request.prompts[0], ChatPrompt)
    first, second = request.prompts[0].messages[1]["tool_calls"]
    assert first["function"]["arguments"] == {"a": 1} and second["function"]["arguments"] == {"input": "none"}
    assert request.prompts[0].messages[1]["reasoning_content"] == "hm"
    assert request.prompts[0].messages[2] == {"role": "tool", "content": "sun", "tool_call_id": "c1"}


def test_role_comes_once_and_the_last_chunk_has_no_content() -> None:
    """The role is in a choice's first chunk only; its last has an empty delta; before it finish_reason is null, not absent."""
    reply = ChatReply(meta(Shape(stream=True), n=2), ByteTokenizer())
    chunks = [chunk["choices"][0] for event in scripted(2) for chunk in reply.chunks(event)]
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert ["role" in chunk["delta"] for chunk in own] == [True] + [False] * (len(own) - 1)
        assert own[-1]["delta"] == {} and own[-1]["finish_reason"] == "stop"
        assert all(chunk["finish_reason"] is None and chunk["logprobs"] is None for chunk in own[:-1])


def test_streamed_pieces_add_up_to_the_whole() -> None:
    """Text, logprobs and token ids of a stream, put together, are those of the whole reply."""
    events, streamed = scripted(scored=True), ChatReply(meta(FULL, 2), ByteTokenizer())
    chunks = [chunk["choices"][0] for event in events for chunk in streamed.chunks(event)]
    document = whole(ChatReply(meta(FULL, 2), ByteTokenizer()), events)["choices"][0]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == document["message"]["content"]
    assert [id for chunk in chunks for id in chunk["token_ids"]] == document["token_ids"]
    content = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert content == document["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == document["message"]["content"]


def test_text_parts_and_developer() -> None:
    """Text parts become lines of one string, and developer is system."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = parse(body(messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]))
    assert request.prompts == [ChatPrompt([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}])]


def test_a_reply_can_be_sent_back() -> None:
    """An assistant message as the SDK dumps it, nulls and empty lists and all, is taken."""
    dumped: dict[str, Any] = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    request = parse(body(messages=[*MESSAGES, dumped, {"role": "user", "content": "more"}]))
    assert [message["content"] for message in request.prompts[0].messages] == ["hi", "hello", "more"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("hi", "invalid_value", "messages[0]"),
        ({"content": "hi"}, "invalid_value", "messages[0].role"),
        ({"role": "wizard", "content": "hi"}, "invalid_value", "messages[0].role"),
        ({"role": ["user"], "content": "hi"}, "invalid_value", "messages[0].role"),
        ({"role": "user"}, "invalid_value", "messages[0].content"),
        ({"role": "user", "content": 3}, "invalid_value", "messages[0].content"),
        ({"role": "user", "content": "hi", "colour": "red"}, "unknown_parameter", "messages[0].colour"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "invalid_value", "messages[0].tool_calls[0].function"),
        ({"role": "user", "content": "", "tool_calls": [{}]}, "unsupported_parameter", "messages[0].tool_calls"),
        ({"role": "assistant", "content": "", "audio": {"id": "x"}}, "unsupported_parameter", "messages[0].audio"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "vision_unsupported", "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "unsupported_parameter", "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "invalid_value", "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "txt": "b"}]},
            "unknown_parameter",
            "messages[0].content[0].txt",
        ),
    ],
)
def test_bad_messages_name_their_place(message: Any, code: str, param: str) -> None:
    error = refusal(messages=[message])
    assert (error.code, error.param) == (code, param)


def test_fields_that_depend_on_each_other() -> None:
    """top_logprobs needs logprobs, stream_options needs stream, and the two names of max_tokens must agree."""
    assert refusal(top_logprobs=2).param == "top_logprobs"
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert refusal(stream=True, stream_options={"include_usages": True}).code == "unknown_parameter"
    assert refusal(stream=True, stream_options={"include_obfuscation": True}).code == "unsupported_parameter"
    assert refusal(max_tokens=3, max_completion_tokens=4).param == "max_tokens"
    assert parse(body(max_tokens=3, max_completion_tokens=3)).options.max_tokens == 3
    assert parse(body(logprobs=True)).options.logprobs == 0
    assert parse(body(logprobs=True, top_logprobs=3)).options.logprobs == 3
    assert parse(body(top_logprobs=0)).options.logprobs == -1
    assert parse(body(stream=True, stream_options={"include_usage": True})).shape.include_usage


def test_off_values_reach_the_engine_as_off() -> None:
    """top_k -1 is 0; top_p 0 keeps the likeliest token alone, which the engine's range spells as a tiny number."""
    options = parse(body(top_k=-1, top_p=0, stop="", seed=-1)).options
    assert options.top_k == 0 and 0 < options.top_p < 1e-6 and options.stop == [] and options.seed == -1


@pytest.mark.parametrize("kind", [{}, [], 5, None, True], ids=str)
def test_a_part_whose_type_is_no_text_is_refused(kind: Any) -> None:
    """Of any JSON type: a 400 that names it."""
    error = refusal(messages=[{"role": "user", "content": [{"type": kind, "text": "a"}]}])
    assert (error.status, error.param) == (400, "messages[0].content[0].type")
