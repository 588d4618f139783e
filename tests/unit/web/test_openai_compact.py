"""/v1/responses/compact, without a server: what is asked of the model, what comes back, and how that is read again."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from byte_text import ByteTokenizer
from openai.types.responses import CompactedResponse, ResponseCompactionItem
from wire_replies import meta, strict, whole

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, ReasoningDelta, Started, TextDelta, Token
from helexa.web.request import ChatPrompt, WireRequest
from helexa.web.wire import openai_responses
from helexa.web.wire.compaction import ASKED, packed, unpacked
from helexa.web.wire.openai_compact import SUMMARY_TOKENS, CompactReply, parse

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TALK = [
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "Understood."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Notify support first."}]},
    CALL,
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]
SAID = ["We launch on Tuesday.", "Notify support first."]


def messages_of(request: WireRequest) -> list[dict[str, Any]]:
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def compacted(summary: str, **fields: Any) -> dict[str, Any]:
    """What the model's summary becomes."""
    events: list[Event] = [Started(0), ReasoningDelta(0, "Let me see.", [Token(1)]), TextDelta(0, summary, [Token(2)])]
    events.append(Finished(0, "stop", [256], [1, 2, 256], 2, 1))
    shape = parse({"model": "m", "input": TALK, **fields}).shape
    return whole(CompactReply(meta(shape), ByteTokenizer()), events)


def test_the_model_is_asked_for_a_summary() -> None:
    """After the conversation, at temperature 0, bounded; in the user's own turn where that comes last."""
    request = parse({"model": "m", "input": TALK, "instructions": "Be brief."})
    messages = messages_of(request)
    assert messages[0] == {"role": "system", "content": "Be brief."} and messages[-1] == {"role": "user", "content": ASKED}
    assert [message["role"] for message in messages[1:-1]] == ["user", "assistant", "user", "assistant", "tool"]
    assert (request.options.temperature, request.options.max_tokens) == (0.0, None)
    assert request.options.default_max_tokens == SUMMARY_TOKENS
    assert messages_of(parse({"model": "m", "input": "Hello"})) == [{"role": "user", "content": f"Hello\n\n{ASKED}"}]


def test_what_comes_back() -> None:
    """The user's messages as they were, and one item; nothing of the reasoning; the package's type takes item and document."""
    document = compacted(" They launch on Tuesday. ")
    *said, item = document["output"]
    assert [(message["role"], message["content"]) for message in said] == [
        ("user", [{"type": "input_text", "text": text}]) for text in SAID
    ]
    assert strict(ResponseCompactionItem, json.dumps(item)) == []
    assert strict(CompactedResponse, json.dumps({**document, "output": [item]})) == []
    assert unpacked(item["encrypted_content"], "p") == "They launch on Tuesday."
    assert document["usage"]["output_tokens_details"] == {"reasoning_tokens": 1}
    assert len({item["id"] for item in document["output"]}) == 3


def test_the_next_request_recalls_it() -> None:
    """What came back, sent as the beginning of the next input, is a turn of the user's and one of the assistant's."""
    output = compacted("They launch on Tuesday.")["output"]
    follow = {"role": "user", "content": "When?"}
    messages = messages_of(openai_responses.parse({"model": "m", "input": [*output, follow], "instructions": "Be brief."}))
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "\n\n".join([*SAID, ASKED])},
        {"role": "assistant", "content": "They launch on Tuesday."},
        follow,
    ]


def test_compacting_again_keeps_the_users_words_once() -> None:
    """A conversation that begins with a compaction can be compacted."""
    output = compacted("They launch.")["output"]
    again = parse({"model": "m", "input": [*output, {"role": "user", "content": "When?"}]})
    assert again.shape.echoed["kept"] == [*SAID, "When?"]
    assert [message["role"] for message in messages_of(again)] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "gAAAA",
        "not base64!",
        base64.b64encode(b"[1]").decode(),
        base64.b64encode(b'{"version":2,"summary":"x"}').decode(),
        5,
        None,
    ],
    ids=str,
)
def test_items_of_another_server_are_refused(content: Any) -> None:
    """A 400 that names the item: what it stands for would be lost in silence."""
    with pytest.raises(RequestError) as caught:
        openai_responses.parse({"model": "m", "input": [{"type": "compaction", "encrypted_content": content}]})
    assert (caught.value.status, caught.value.param) == (400, "input[0].encrypted_content")


@pytest.mark.parametrize("summary", ["", "Zoë said “no”\n🤗", "\u0000"])
def test_a_summary_is_read_as_it_was_written(summary: str) -> None:
    assert unpacked(packed(summary), "p") == summary


def test_an_empty_summary_is_an_error() -> None:
    """It would stand for a conversation and say nothing of it."""
    with pytest.raises(RequestError, match="no summary"):
        compacted(" \n")
    with pytest.raises(RequestError) as chained:
        parse({"model": "m", "input": "x", "previous_response_id": "resp_1"})
    assert chained.value.code == "chained_conversation_not_supported"


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "a", "mood": "x"},
        {**CALL, "arguments_": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x", "is_error": True},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "compaction", "encrypted_content": packed("x"), "summary": "y"},
    ],
    ids=str,
)
def test_fields_of_items_that_nothing_reads_are_refused(item: dict[str, Any]) -> None:
    """As at the top of the body; null is absent, and what replies carry passes."""
    with pytest.raises(RequestError) as caught:
        openai_responses.parse({"model": "m", "input": [{"role": "user", "content": "a"}, item]})
    assert caught.value.code == "unknown_parameter" and (caught.value.param or "").startswith("input[1].")
    plain = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "phase": "final_answer",
        "role": "assistant",
        "content": "a",
    }
    assert openai_responses.parse({"model": "m", "input": [{**plain, "mood": None}]})
