"""The `openai` package, unchanged, against the real service."""

from __future__ import annotations

import re

import openai
import pytest
from service import serving

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def client(tmp_path_factory, tiny_model_path):
    with serving(tmp_path_factory.mktemp("openai"), str(tiny_model_path)) as service:
        yield openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say something."}]


def test_models_are_listed(client):
    """`models.list` and `models.retrieve`; an unknown one is NotFoundError that lists what is served."""
    (model,) = client.models.list().data
    assert model.id == "tiny" and client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("gpt-5")


def test_chat_and_its_stream_agree(client):
    """The streamed pieces concatenate to the whole answer; usage comes in both; a seed repeats it."""
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0.8, "seed": 7}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    counted = [(usage.prompt_tokens, usage.completion_tokens) for usage in (chunks[-1].usage, whole.usage)]
    assert counted[0] == counted[1] and whole.usage.completion_tokens <= 24
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_stream_helper_builds_the_whole_completion(client):
    """`chat.completions.stream` builds the final completion from the chunks."""
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, max_tokens=10, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        snapshot = stream.current_completion_snapshot
    assert snapshot.choices[0].message.content == "".join(pieces) != ""


def test_completions(client):
    """Text and token-array prompts, several at once, stop strings, n choices, ids returned on request."""
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 80, "temperature": 1, "seed": 3, "extra_body": {"ignore_eos": True}}
    text = client.completions.create(**{**asked, "extra_body": {"ignore_eos": True, "return_token_ids": True}})
    ids = text.choices[0].model_extra["token_ids"]
    assert len(ids) == text.usage.completion_tokens
    prompt_ids = text.choices[0].model_extra["prompt_token_ids"]
    by_ids = client.completions.create(**{**asked, "prompt": prompt_ids})
    assert by_ids.choices[0].text == text.choices[0].text
    several = client.completions.create(model="tiny", prompt=["abc", "xyz"], max_tokens=4, temperature=0.9, seed=1, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text != several.choices[1].text
    mark = re.search(r"[!-~]", text.choices[0].text[5:])[0]
    stopped = client.completions.create(**asked, stop=[mark])
    assert stopped.choices[0].text == text.choices[0].text.split(mark)[0] and stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < text.usage.completion_tokens


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, openai.BadRequestError, "context"),
        ({"model": "other"}, openai.NotFoundError, "tiny"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_the_clients_own_error_type(client, fields, error, named, stream):
    """400 and 404 before any stream opens, naming the field and the remedy."""
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "stream": stream, **fields})
    assert named in str(caught.value)


@pytest.mark.model
def test_the_default_model_knows_paris(tmp_path, default_model_path):
    """At temperature 0, streamed and not."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with serving(tmp_path, str(default_model_path), "--name", "smollm2") as service:
        client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none")
        whole = client.chat.completions.create(model="smollm2", messages=question, temperature=0)
        assert "Paris" in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(model="smollm2", messages=question, temperature=0, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
