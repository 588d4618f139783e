"""The `anthropic` package, unchanged, against the real service."""

from __future__ import annotations

import anthropic
import pytest
from service import serving
from tiny_model import write_tiny_model

pytestmark = pytest.mark.process

HI = [{"role": "user", "content": "Say something."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": {
        "type": "object",
        "properties": {"days": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["days"],
    },
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anthropic")
    model = write_tiny_model(folder / "tiny.gguf", context=4096)  # a token a byte: descriptions of tools are long
    with serving(folder, str(model)) as service:
        yield anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0)


def test_a_message_and_its_stream_agree(client):
    """The text stream, the accumulated message, and the message that is not streamed; a seed repeats it."""
    asked = {
        "model": "tiny",
        "max_tokens": 24,
        "messages": HI,
        "system": "Be short.",
        "extra_body": {"temperature": 0.8, "seed": 7},
    }
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert whole._request_id


def test_forced_tool_use(client):
    """A model of random weights calls the tool it must call, with arguments of its schema, streamed and not."""
    asked = {"model": "tiny", "max_tokens": 400, "messages": HI, "tools": [TOOL], "extra_body": {"temperature": 0, "seed": 1}}
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    whole = client.messages.create(**asked, tool_choice=choice)
    (block,) = whole.content
    assert whole.stop_reason == "tool_use" and block.name == "get_weather" and 0 <= block.input["days"] <= 9
    with client.messages.stream(**asked, tool_choice=choice) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert "input_json" in kinds and final.content[0].input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [*HI, {"role": "assistant", "content": [block.model_dump()]}, {"role": "user", "content": [result]}]
    assert client.messages.create(model="tiny", max_tokens=4, messages=turns, tools=[TOOL]).usage.output_tokens <= 4


def test_stop_sequences_and_counts(client):
    """The sequence that stopped a reply is named; counting agrees with what generating counts."""
    asked = {"model": "tiny", "max_tokens": 100, "messages": HI, "extra_body": {"temperature": 1, "seed": 3, "ignore_eos": True}}
    plain = client.messages.create(**asked)
    mark = next(letter for letter in plain.content[0].text[5:] if letter.isascii() and letter.isprintable() and letter != " ")
    stopped = client.messages.create(**asked, stop_sequences=[mark])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", mark)
    assert stopped.content[0].text == plain.content[0].text.split(mark)[0]
    count = client.messages.count_tokens(model="tiny", messages=HI).input_tokens
    assert count == plain.usage.input_tokens + plain.usage.cache_read_input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_packages_own(client, stream):
    """400 and 404 before any stream opens."""
    with pytest.raises(anthropic.NotFoundError, match="tiny"):
        client.messages.create(model="other", max_tokens=5, messages=HI, stream=stream)
    with pytest.raises(anthropic.BadRequestError, match="context") as caught:
        client.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": "x" * 5000}], stream=stream)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
