"""The `openai` package against the real service: responses, tools, structured output, scored prompts."""

from __future__ import annotations

import json
import math

import openai
import pytest
from pydantic import BaseModel
from service import serving
from tiny_model import write_tiny_model

pytestmark = pytest.mark.process

HI = [{"role": "user", "content": "Say something."}]
PARAMETERS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
GREEDY = {"model": "tiny", "temperature": 0, "seed": 1}


class Answer(BaseModel):
    yes: bool
    digit: int


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openai")
    model = write_tiny_model(folder / "tiny.gguf", context=4096)  # a token a byte: descriptions of tools are long
    with serving(folder, str(model)) as service:
        yield openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def test_a_response_and_its_stream_agree(client):
    """The final response of the stream helper is the one that is not streamed."""
    format = {"type": "json_schema", "name": "colour", "schema": {"enum": ["red", "green"]}}
    asked = {"model": "tiny", "temperature": 0, "input": "hi", "instructions": "Be short.", "text": {"format": format}}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert deltas == final.output_text == whole.output_text in ('"red"', '"green"')
    assert whole.status == "completed" and whole.instructions == "Be short."
    assert final.usage.output_tokens == whole.usage.output_tokens
    with pytest.raises(openai.BadRequestError, match="stored"):
        client.responses.create(model="tiny", input="hi", previous_response_id=whole.id)


def test_a_cut_response_is_incomplete(client):
    """Streamed and not."""
    asked = {"model": "tiny", "temperature": 0, "input": "hi", "max_output_tokens": 5, "extra_body": {"ignore_eos": True}}
    whole = client.responses.create(**asked)
    last = list(client.responses.create(**asked, stream=True))[-1]
    assert last.type == "response.incomplete" and last.response.output_text == whole.output_text
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"


def test_a_compacted_conversation_goes_on(client):
    """`responses.compact` keeps the user's words and one item; a reply to them with a question after it repeats, and chains are refused."""
    talk = [
        {"role": "user", "content": "We launch on Tuesday."},
        {"role": "assistant", "content": "Understood."},
        {"role": "user", "content": "Tell support."},
    ]
    compacted, again = (client.responses.compact(model="tiny", input=talk, instructions="Be short.") for _ in range(2))
    assert compacted.object == "response.compaction" and compacted.usage.output_tokens > 0
    first, second, item = compacted.output
    assert [part.content[0].text for part in (first, second)] == ["We launch on Tuesday.", "Tell support."]
    assert item.type == "compaction" and item.encrypted_content == again.output[2].encrypted_content
    following = [*(part.model_dump(exclude_none=True) for part in compacted.output), {"role": "user", "content": "When?"}]
    replies = [client.responses.create(model="tiny", temperature=0, input=following, max_output_tokens=8) for _ in range(2)]
    assert replies[0].output_text == replies[1].output_text and replies[0].usage.input_tokens > 100
    with pytest.raises(openai.BadRequestError, match="stored"):
        client.responses.compact(model="tiny", input="hi", previous_response_id="resp_1")


def test_forced_calls(client):
    """A model of random weights calls the named tool, on both endpoints, streamed and not; its results are taken back."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    asked = {**GREEDY, "messages": HI, "tools": [TOOL], "tool_choice": named, "parallel_tool_calls": False, "max_tokens": 400}
    whole = client.chat.completions.create(**asked).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls" and 0 <= json.loads(call.function.arguments)["days"] <= 9
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert "tool_calls.function.arguments.done" in kinds and final.function.arguments == call.function.arguments
    turns = [*HI, whole.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(**GREEDY, messages=turns, tools=[TOOL], max_tokens=4).choices
    flat = [{"type": "function", **FUNCTION, "strict": True}]
    response = client.responses.create(
        model="tiny",
        temperature=0,
        input="hi",
        tools=flat,
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=400,
    )
    (item,) = response.output
    assert item.type == "function_call" and 0 <= json.loads(item.arguments)["days"] <= 9


def test_structured_output(client):
    """`parse` gives the model's class; a choice is one of its strings; sampled and at any temperature."""
    parsed = client.chat.completions.parse(
        model="tiny", messages=HI, response_format=Answer, temperature=1.5, seed=4, max_tokens=400
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    for seed in range(4):
        asked = {"model": "tiny", "messages": HI, "temperature": 2, "seed": seed}
        reply = client.chat.completions.create(**asked, extra_body={"guided_choice": ["red", "green"]})
        assert reply.choices[0].message.content in ("red", "green") and reply.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="guided_regex"):
        client.chat.completions.create(**GREEDY, messages=HI, extra_body={"guided_regex": "((("})


def test_a_grammar_and_its_neighbours(client):
    """The reply under a grammar is the same alone and beside others, and so are theirs."""
    asked = {"model": "tiny", "messages": HI, "temperature": 1, "max_tokens": 30, "seed": 9}
    grammar = {"guided_regex": "[a-z]{30}"}
    alone = client.chat.completions.create(**asked, extra_body=grammar).choices[0].message.content
    free = client.chat.completions.create(**asked).choices[0].message.content
    streams = [client.chat.completions.create(**asked, stream=True, extra_body=grammar if n % 2 else {}) for n in range(6)]
    for n, stream in enumerate(streams):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == (alone if n % 2 else free)
    assert len(alone) == 30 and alone.isalpha() and alone.islower()


def test_scored_prompts(client):
    """Evaluation: the prompt's log probabilities, one more token, choices in order; the same through ids and beside others."""
    asked = {"model": "tiny", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    texts = ["abc def", "the quick brown fox " * 8]
    both = client.completions.create(**asked, prompt=texts)
    for text, choice in zip(texts, both.choices, strict=True):
        (alone,) = client.completions.create(**asked, prompt=text).choices
        assert alone.logprobs == choice.logprobs
        ids = client.completions.create(**asked, prompt=text, extra_body={"return_token_ids": True}).choices[0].model_extra
        (again,) = client.completions.create(**asked, prompt=ids["prompt_token_ids"]).choices
        assert again.logprobs.token_logprobs == choice.logprobs.token_logprobs
        scores = choice.logprobs.token_logprobs
        assert scores[0] is None and len(scores) == len(ids["prompt_token_ids"]) + 1
        assert all(score <= 0 and math.isfinite(score) for score in scores[1:])
        assert all(max(top.values()) >= score for top, score in zip(choice.logprobs.top_logprobs[1:], scores[1:], strict=True))
