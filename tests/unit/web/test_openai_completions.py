"""/v1/completions, without a server: bodies to requests, events to documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from byte_text import ByteTokenizer
from openai.types import Completion
from pydantic import ValidationError
from wire_replies import meta, scripted, strict, transcript, whole

from helexa.errors import RequestError
from helexa.web.request import Shape, TextPrompt, TokenPrompt
from helexa.web.wire.openai_completions import CompletionsReply, parse

FULL = Shape(stream=True, include_usage=True, token_ids=True, token_sha=True, echo=True)


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse({"model": "m", **fields})
    return caught.value


@pytest.mark.parametrize(
    ("name", "shape", "logprobs", "prompts"),
    [
        ("completions_stream.sse", Shape(stream=True), -1, ["Hi"]),
        ("completions_stream_two_prompts.sse", Shape(stream=True, include_usage=True), 2, ["Hi", "Ho"]),
        ("completions_stream_everything.sse", FULL, -1, ["Hi"]),
    ],
)
def test_streamed_transcript(
    golden: Callable[[str, str], None], name: str, shape: Shape, logprobs: int, prompts: list[str]
) -> None:
    """The whole stream, as in the golden file. All that the openai package's type does not have is a null finish."""
    reply = CompletionsReply(meta(shape, logprobs, prompts=prompts), ByteTokenizer())
    text = transcript(reply, scripted(len(prompts), scored=logprobs >= 0))
    golden(name, text)
    for frame in text.split("\n\n")[:-2]:
        try:
            unknown = strict(Completion, frame.removeprefix("data: "))
        except ValidationError as error:
            assert [problem["loc"][-1] for problem in error.errors()] == ["finish_reason"]
        else:
            assert all("token_" in path for path in unknown)


@pytest.mark.parametrize(
    ("name", "shape", "logprobs"), [("completions.json", Shape(), 2), ("completions_everything.json", FULL, -1)]
)
def test_whole_document(golden: Callable[[str, str], None], name: str, shape: Shape, logprobs: int) -> None:
    """The document of a reply that is not streamed."""
    document = whole(CompletionsReply(meta(shape, logprobs), ByteTokenizer()), scripted(scored=logprobs >= 0))
    golden(name, json.dumps(document, indent=1) + "\n")
    assert all("token_" in path for path in strict(Completion, json.dumps(document)))


def test_a_prompt_is_scored_with_echo() -> None:
    """The engine is asked for the prompt's log probabilities exactly when both fields say so."""
    wanted = [
        parse({"model": "m", "prompt": "a", **fields}).options.prompt_logprobs
        for fields in ({}, {"echo": True}, {"logprobs": 3}, {"echo": True, "logprobs": 3}, {"echo": True, "logprobs": 0})
    ]
    assert wanted == [-1, -1, -1, 3, 0]


def test_choices_come_in_order_of_prompt_and_choice() -> None:
    """Two prompts of two choices: indices 0 to 3, each with its own prompt echoed, whatever order they ended in."""
    reply = CompletionsReply(meta(Shape(echo=True), n=2, prompts=["Hi", "Ho"]), ByteTokenizer())
    document = whole(reply, list(reversed(scripted(4))))
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]


def test_text_offsets_point_into_the_text() -> None:
    """text_offset counts characters; bytes of one character share its place."""
    document = whole(CompletionsReply(meta(Shape(), 0), ByteTokenizer()), scripted(scored=True))
    logprobs = document["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1] and document["choices"][0]["text"] == "Aé"
    assert logprobs["top_logprobs"][0] == {"A": -0.25}, "with 0, the sampled token alone"


def test_token_sha_is_of_little_endian_int32() -> None:
    document = whole(CompletionsReply(meta(Shape(token_sha=True)), ByteTokenizer()), scripted())
    expected = hashlib.sha256(b"\x41\0\0\0\xc3\0\0\0\xa9\0\0\0\x00\x01\0\0").hexdigest()
    assert document["choices"][0]["token_sha"] == expected


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", [TextPrompt("hi")]),
        (["hi", ""], [TextPrompt("hi"), TextPrompt("")]),
        ([1, 2], [TokenPrompt([1, 2])]),
        ([[1], [2, 3]], [TokenPrompt([1]), TokenPrompt([2, 3])]),
    ],
)
def test_four_forms_of_prompt(given: Any, prompts: list[Any]) -> None:
    assert parse({"model": "m", "prompt": given}).prompts == prompts


@pytest.mark.parametrize("given", [["a", 1], [1, [2]], [True], [1.0], [-1], [2**31], [None], 3, {}, [[1, "a"]]])
def test_mixtures_are_refused(given: Any) -> None:
    assert refusal(prompt=given).param == "prompt"


def test_bounds() -> None:
    """Prompts times choices are bounded; an empty array is an empty prompt."""
    assert refusal(prompt=["a"] * 129).code == "invalid_value"
    assert refusal(prompt=["a"] * 65, n=2).code == "invalid_value"
    assert refusal(prompt=[]).code == "empty_prompt"
    assert refusal(prompt="a", suffix="b").param == "suffix"
    assert refusal(prompt="a", best_of=2).param == "best_of"
    assert refusal(prompt="a", logprobs=True).param == "logprobs"
    assert parse({"model": "m", "prompt": "a", "best_of": 1, "suffix": None, "echo": True}).shape.echo
