"""Bodies that public clients send are taken: the openai package's as it makes them here, others as they were seen on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from helexa.web.wire import anthropic_messages, openai_chat, openai_completions, openai_responses, tokens

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}}
FLAT: Any = {"type": "function", **TOOL["function"]}
ITEMS: Any = [
    {"role": "user", "content": "hi"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]


class Answer(pydantic.BaseModel):
    digit: int


def recorded() -> list[dict[str, Any]]:
    """What the openai package sends for a choice of calls."""
    seen: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append({"path": request.url.path, "body": json.loads(request.content)})
        return httpx2.Response(400, json={"error": {"message": "recorded"}})

    client = openai.OpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="x", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    )
    chat: Any = client.chat.completions
    calls: list[Callable[[], Any]] = [
        lambda: chat.create(model="m", messages=MESSAGES),
        lambda: chat.create(model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}),
        lambda: chat.create(
            model="m", messages=MESSAGES, max_completion_tokens=5, n=2, stop=["a"], seed=1, temperature=0.5, top_p=0.9
        ),
        lambda: chat.create(model="m", messages=MESSAGES, logprobs=True, top_logprobs=2, logit_bias={"5": -100}, user="u"),
        lambda: chat.create(
            model="m", messages=MESSAGES, presence_penalty=0.1, frequency_penalty=-0.1, store=False, metadata={"a": "b"}
        ),
        lambda: chat.create(model="m", messages=MESSAGES, service_tier="auto", response_format={"type": "text"}, tools=[]),
        lambda: chat.create(model="m", messages=MESSAGES, extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}),
        lambda: chat.stream(model="m", messages=MESSAGES).__enter__(),
        lambda: client.completions.create(model="m", prompt="hi"),
        lambda: client.completions.create(model="m", prompt=["a", "b"], echo=True, max_tokens=3, best_of=1, stream=True),
        lambda: client.completions.create(model="m", prompt=[1, 2], logprobs=2, suffix=None, seed=1),
        lambda: chat.create(model="m", messages=MESSAGES, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False),
        lambda: chat.parse(model="m", messages=MESSAGES, response_format=Answer, reasoning_effort="none"),
        lambda: client.responses.create(model="m", input="hi", instructions="i", temperature=0, top_p=1, max_output_tokens=5),
        lambda: client.responses.create(model="m", input="hi", stream=True, store=False, include=[], metadata={"a": "b"}),
        lambda: client.responses.create(model="m", input=ITEMS, tools=[FLAT], tool_choice={"type": "function", "name": "f"}),
        lambda: client.responses.parse(model="m", input="hi", text_format=Answer, truncation="disabled", user="u"),
    ]
    for call in calls:
        with pytest.raises(openai.BadRequestError, match="recorded"):
            call()
    return seen


PARSERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "/v1/chat/completions": openai_chat.parse,
    "/v1/completions": openai_completions.parse,
    "/v1/responses": openai_responses.parse,
    "/v1/messages": anthropic_messages.parse,
    "/tokenize": tokens.parse_tokenize,
}


def test_the_openai_package(golden: Callable[[str, str], None]) -> None:
    """Each of its bodies is taken; the golden file shows what this version sends."""
    bodies = recorded()
    golden("openai_package_bodies.json", json.dumps(bodies, indent=1) + "\n")
    for entry in bodies:
        assert PARSERS[entry["path"]](entry["body"]).model == "m"


RECORDED = json.loads((Path(__file__).parents[2] / "clients" / "recorded_bodies.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: f"{entry['client']} {entry['path']}")
def test_recorded_clients(entry: dict[str, Any]) -> None:
    """What client libraries sent to a running service (tools/long_checks.sh clients, through a recording proxy) is taken."""
    PARSERS[entry["path"]](entry["body"])


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.7, "stream": True, "stream_options": {"include_usage": True}, "n": 1},
        {"temperature": 0, "max_tokens": 256, "stop": ["\n\n"], "seed": 1234},
        {
            "max_tokens": 10,
            "max_completion_tokens": 10,
            "stop": None,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        {"stream": False},
        {
            "top_p": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "logit_bias": None,
            "user": None,
            "tools": None,
            "tool_choice": None,
        },
    ],
    ids=["agent library", "evaluation harness", "load tool", "command line", "nulls"],
)
def test_other_chat_clients(body: dict[str, Any]) -> None:
    assert openai_chat.parse({"model": "m", "messages": MESSAGES, **body}).model == "m"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a", "b"], "max_tokens": 64, "temperature": 0, "stop": ["\n"], "seed": 1234},
        {
            "prompt": "a",
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": 8,
            "logprobs": None,
            "stream": True,
            "ignore_eos": True,
        },
    ],
    ids=["evaluation harness", "load tool"],
)
def test_other_completion_clients(body: dict[str, Any]) -> None:
    assert openai_completions.parse({"model": "m", **body}).model == "m"
