"""What an OpenAI-compatible server is sent, and what its events say."""

from __future__ import annotations

import json

import pytest

from helexa.bench.load import Exchange
from helexa.bench.openai_target import Load, body_of, sample_of
from helexa.web.wire import openai_chat, openai_completions

LOAD = Load("completions", 64, 0.0, cached=False)
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}


def seen(*chunks: object, status: int = 200, error: str = "", done: bool = True) -> Exchange:
    events = [(1.0 + at, json.dumps(chunk).encode()) for at, chunk in enumerate(chunks)]
    return Exchange(0.5, 99.0, status, events + ([(98.0, b"[DONE]")] if done else []), b"the body", error)


def text(piece: str) -> dict:
    return {"choices": [{"text": piece}]}


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_helexa_takes_the_body(route):
    """No field of it is unknown or refused."""
    body = body_of("Hi", "m", "helexa", Load(route, 64, 0.0, cached=False))
    (openai_completions if route == "completions" else openai_chat).parse(body)
    assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (64, True, True)


def test_servers_get_the_fields_they_know():
    """llama.cpp caches prompts unless told not to; an unknown server gets OpenAI's fields alone."""
    assert body_of("Hi", "m", "llamacpp", LOAD)["cache_prompt"] is False
    assert body_of("Hi", "m", "llamacpp", Load("chat", 64, 0.0, cached=True))["cache_prompt"] is True
    assert "cache_prompt" not in body_of("Hi", "m", "vllm", LOAD)
    assert set(body_of("Hi", "m", "openai", LOAD)) == {
        "model", "prompt", "max_tokens", "temperature", "stream", "stream_options"
    }  # fmt: skip


def test_tokens_by_usage_and_times_by_pieces_of_output():
    """Chunks without output (a role, an end, the usage) are no arrivals."""
    chunks = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}, {"choices": [{"delta": {"content": "a"}}]}]
    chunks += [{"choices": [{"delta": {"reasoning_content": "b"}}]}, {"choices": [], "usage": USAGE}]
    sample = sample_of(seen(*chunks))
    assert (sample.sent, list(sample.arrivals), sample.ended, sample.error) == (0.5, [2.0, 3.0], 99.0, "")
    assert (sample.prompt_tokens, sample.cached_tokens, sample.output_tokens) == (9, 3, 5)


def test_without_usage_a_piece_counts_as_a_token():
    sample = sample_of(seen(text("a"), text(""), text("b"), {"choices": [{"text": "c"}], "usage": None}))
    assert (sample.output_tokens, sample.prompt_tokens) == (3, 0)


@pytest.mark.parametrize(
    ("exchange", "error"),
    [
        (seen(status=503), "status 503: the body"),
        (seen(error="reset", status=0), "reset"),
        (seen(text("a"), done=False), "without [DONE]"),
        (seen(text("a"), {"error": {"message": "died"}}, done=False), "died"),
        (seen(["a"]), "not a JSON object"),
    ],
)
def test_failures(exchange, error):
    assert error in sample_of(exchange).error
