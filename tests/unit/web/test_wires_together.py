"""The routes beside chat and completions, through the whole web tier, between an ASGI client and a scheduler's peer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from asgi_client import Client, Response, lifespan
from byte_text import load_byte_text
from fake_scheduler import FakeScheduler, model_info
from openai.types import Completion
from openai.types.responses import Response as ResponseDocument
from openai.types.responses import ResponseStreamEvent
from wire_replies import strict

from helexa.config_tables import Config, Server
from helexa.web.app import create_app
from ipc.messages import Generate, ModelInfo

HI = [{"role": "user", "content": "hello"}]
MESSAGES = {"model": "m", "messages": HI, "max_tokens": 20}
CHAT = {"model": "m", "messages": HI}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
Scene = Callable[[Client, FakeScheduler], Awaitable[None]]


def served(run_dir: Path, name: str = "m") -> ModelInfo:
    file = run_dir / "model.gguf"
    file.write_bytes(b"")
    return model_info(name, files={"gguf": str(file)}, context=4096)


def play(run_dir: Path, scene: Scene, config: Config | None = None, **peer: Any) -> None:
    async def main() -> None:
        async with lifespan(create_app(config or Config(), run_dir, load_byte_text)) as client, asyncio.timeout(30):
            await scene(client, scheduler)

    with FakeScheduler(run_dir, **{"models": [served(run_dir)], **peer}) as scheduler:
        asyncio.run(main())


def says(text: str) -> Callable[..., tuple[list[int], str, int | None]]:
    """A peer that answers every request with the text."""
    return lambda *_: ([*text.encode(), 256], "stop", 256)


def documents(response: Response) -> list[Any]:
    """The data of a stream with named events; each name is its document's type."""
    found = []
    for frame in response.body.decode().split("\n\n"):
        lines = frame.split("\n")
        if lines[0].startswith("event: "):
            found.append(json.loads(lines[1].removeprefix("data: ")))
            assert lines[0] == f"event: {found[-1]['type']}"
    return found


def test_messages(tmp_path: Path) -> None:
    """Whole and streamed agree, are what the package's types take strictly, and carry Anthropic's request id."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        whole = await client.post("/v1/messages", MESSAGES, {"x-request-id": "mine"})
        assert whole.status == 200 and strict(Message, whole.body) == [] and whole.headers["request-id"] == "mine"
        streamed = await client.post("/v1/messages", {**MESSAGES, "stream": True})
        events = documents(streamed)
        assert [path for event in events for path in strict(RawMessageStreamEvent, json.dumps(event))] == []
        assert b"[DONE]" not in streamed.body and events[0]["message"]["usage"]["input_tokens"] == 5
        text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        assert text == whole.json()["content"][0]["text"] == "hello"
        assert events[-2]["usage"] == whole.json()["usage"] and events[-2]["delta"]["stop_reason"] == "end_turn"
        count = await client.post("/v1/messages/count_tokens", CHAT)
        assert count.json() == {"input_tokens": 5}

    play(tmp_path, scene)


def test_responses(tmp_path: Path) -> None:
    """Whole and streamed agree and are what the package's types take."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        whole = (await client.post("/v1/responses", {"model": "m", "input": "hello"})).json()
        surplus = {".frequency_penalty", ".presence_penalty", ".store"}
        assert set(strict(ResponseDocument, json.dumps(whole))) == surplus
        assert whole["output"][0]["content"][0]["text"] == "hello" and whole["completed_at"] >= whole["created_at"]
        events = documents(await client.post("/v1/responses", {"model": "m", "input": "hello", "stream": True}))
        for event in events:
            assert {path.removeprefix(".response") for path in strict(ResponseStreamEvent, json.dumps(event))} <= surplus
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]

    play(tmp_path, scene)


def test_tool_calls_on_every_wire(tmp_path: Path) -> None:
    """The same reply is a call on each, streamed and not; the reason says so."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        chat = (await client.post("/v1/chat/completions", {**CHAT, "tools": [TOOL]})).json()["choices"][0]
        (call,) = chat["message"]["tool_calls"]
        assert chat["finish_reason"] == "tool_calls" and chat["message"]["content"] is None
        assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
        chunks = (await client.post("/v1/chat/completions", {**CHAT, "tools": [TOOL], "stream": True})).chunks()
        (delta,) = [chunk["choices"][0]["delta"] for chunk in chunks if "tool_calls" in chunk["choices"][0]["delta"]]
        assert delta["tool_calls"][0]["function"] == call["function"] and delta["tool_calls"][0]["index"] == 0
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        message = (await client.post("/v1/messages", {**MESSAGES, "max_tokens": 200, "tools": tools})).json()
        assert message["stop_reason"] == "tool_use" and message["content"][0]["input"] == {"a": 1}
        flat = [{"type": "function", "name": "f"}]
        response = (await client.post("/v1/responses", {"model": "m", "input": "hi", "tools": flat})).json()
        assert [item["type"] for item in response["output"]] == ["function_call"]
        without = (await client.post("/v1/chat/completions", CHAT)).json()["choices"][0]
        assert without["message"]["content"] == CALL and without["finish_reason"] == "stop"

    play(tmp_path, scene, reply=says(CALL))


def test_a_single_call_is_stopped_at(tmp_path: Path) -> None:
    """`parallel_tool_calls` false: the engine is told to stop after the first call."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        body = {**CHAT, "tools": [TOOL], "parallel_tool_calls": False}
        choice = (await client.post("/v1/chat/completions", body)).json()
        assert len(choice["choices"][0]["message"]["tool_calls"]) == 1
        assert choice["usage"]["completion_tokens"] == len(CALL)

    play(tmp_path, scene, reply=says(CALL + CALL))


def test_errors_in_each_shape(tmp_path: Path) -> None:
    """A failed row in a stream, and a refusal before it, in the envelope of the route."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        streams = [
            client.begin("/v1/messages", {**MESSAGES, "stream": True}),
            client.begin("/v1/responses", {"model": "m", "input": "hello", "stream": True}),
        ]
        await asyncio.to_thread(peer.wait_for, Generate, 2)
        await asyncio.to_thread(peer.fail, "error", "the logits are NaN")
        message, response = [documents(await stream.whole())[-1] for stream in streams]
        assert message["type"] == "error" and message["error"]["type"] == "api_error" and "NaN" in message["error"]["message"]
        assert response["type"] == "error" and response["code"] == response["error"]["code"] == "generation_failed"
        for path in ("/v1/messages", "/messages", "/v1/messages/count_tokens"):
            missing = await client.post(path, {"model": "m"})
            assert missing.status == 400 and missing.json()["type"] == "error"
            assert missing.json()["error"]["type"] == "invalid_request_error"
        unknown = await client.post("/v1/messages", {**MESSAGES, "model": "nope"})
        assert unknown.status == 404 and unknown.json()["error"]["type"] == "not_found_error"
        too_long = await client.post("/v1/messages", {**MESSAGES, "max_tokens": 5000, "stream": True})
        assert too_long.status == 400 and "context" in too_long.json()["error"]["message"]
        chained = await client.post("/v1/responses", {"model": "m", "input": "x", "previous_response_id": "resp_1"})
        assert chained.status == 400 and chained.json()["error"]["code"] == "chained_conversation_not_supported"

    play(tmp_path, scene, allowed=2)


def test_routes_without_the_version(tmp_path: Path) -> None:
    async def scene(client: Client, _: FakeScheduler) -> None:
        assert (await client.post("/chat/completions", CHAT)).status == 200
        assert (await client.post("/completions", {"model": "m", "prompt": "a"})).status == 200
        assert (await client.post("/responses", {"model": "m", "input": "a"})).status == 200
        assert (await client.post("/messages", MESSAGES)).status == 200
        assert (await client.get("/models")).json()["data"][0]["id"] == "m"

    play(tmp_path, scene)


def test_tokens_and_back(tmp_path: Path) -> None:
    """Text, messages and pieces to ids; ids to text; ids that the model has not are a 400."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        ids = (await client.post("/tokenize", {"model": "m", "prompt": "hé", "return_token_strs": True})).json()
        assert ids == {"tokens": [104, 195, 169], "count": 3, "max_model_len": 4096, "token_strs": ["h", "\ufffd", "\ufffd"]}
        pieces = (await client.post("/v1/tokenize", {"content": "hé", "with_pieces": True})).json()["tokens"]
        assert pieces == [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
        assert (await client.post("/tokenize", {"model": "m", "messages": HI})).json()["count"] == 5
        assert (await client.post("/detokenize", {"tokens": ids["tokens"]})).json() == {"prompt": "hé", "content": "hé"}
        for path, body in (
            ("/detokenize", {"tokens": [9999]}),
            ("/tokenize", {}),
            ("/tokenize", {"prompt": "a", "content": "b"}),
        ):
            assert (await client.post(path, body)).status == 400
        info = (await client.get("/tokenizer_info")).json()
        assert (info["bos_token"], info["eos_token"], info["vocab_size"]) == (None, "<|eos|>", 260)
        embeddings = await client.post("/v1/embeddings", {"model": "m", "input": "x"})
        assert embeddings.status == 400 and embeddings.json()["error"]["code"] == "embeddings_unsupported"

    play(tmp_path, scene)


def test_a_scored_prompt(tmp_path: Path) -> None:
    """`echo` with `logprobs`: null first, then every prompt token, then the output's; also the end's, which has no text."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        body = {"model": "m", "prompt": ["abc", "xy"], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        whole = await client.post("/v1/completions", body)
        first, second = whole.json()["choices"]
        assert first["text"] == "abca" and first["logprobs"]["tokens"] == ["a", "b", "c", "a"]
        assert first["logprobs"]["token_logprobs"] == [None, -0.25, -0.25, -0.5]
        assert first["logprobs"]["top_logprobs"][:2] == [None, {"b": -0.25}] and first["logprobs"]["text_offset"] == [0, 1, 2, 3]
        assert len(second["logprobs"]["tokens"]) == 3
        chunks = (await client.post("/v1/completions", {**body, "stream": True})).chunks()
        for index, choice in enumerate((first, second)):
            parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["index"] == index]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [item for part in parts if part for item in part[name]] == choice["logprobs"][name]
        (request, *_) = [message for message in _.received if isinstance(message, Generate)]
        assert request.params.prompt_logprobs == 1

    play(tmp_path, scene)


def test_a_scored_prompt_whose_output_ends_at_once(tmp_path: Path) -> None:
    """Evaluation harnesses take the prompt's tokens and one more: the end of sequence is that one."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        body = {"model": "m", "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 1}
        whole = await client.post("/v1/completions", body)
        assert len(whole.json()["choices"][0]["logprobs"]["token_logprobs"]) == 4
        assert whole.json()["choices"][0]["text"] == "abc"
        chunks = (await client.post("/v1/completions", {**body, "stream": True})).chunks()
        assert sum(len((chunk["choices"][0]["logprobs"] or {"tokens": []})["tokens"]) for chunk in chunks) == 4
        assert type(strict(Completion, json.dumps({**whole.json(), "choices": []}))) is list

    play(tmp_path, scene, reply=lambda *_: ([256], "stop", 256))


def test_grammars_are_checked_at_the_door(tmp_path: Path) -> None:
    """A 400 that names the field before anything is generated; a sound one reaches the engine; on completions too."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "unicorn"}}}
        cases: list[tuple[dict[str, Any], str]] = [
            ({"response_format": broken}, "response_format.json_schema.schema"),
            ({"guided_regex": "((("}, "guided_regex"),
            ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
            ({"response_format": {"type": "poem"}}, "response_format.type"),
            ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
        ]
        for fields, param in cases:
            for stream in (False, True):
                refused = await client.post("/v1/chat/completions", {**CHAT, **fields, "stream": stream})
                assert (refused.status, refused.json()["error"]["param"]) == (400, param)
        assert not [message for message in peer.received if isinstance(message, Generate)]
        sound = {"response_format": {"type": "json_object"}}
        assert (await client.post("/v1/completions", {"model": "m", "prompt": "a", **sound})).status == 200
        assert '"type": "object"' in peer.wait_for(Generate)[0].params.grammar

    play(tmp_path, scene)


def test_hosts_and_origins(tmp_path: Path) -> None:
    """A name that is not loopback's is refused; pages of listed origins may read, others get no word of it."""
    server = Server(allowed_hosts=["llm.example"], cors_origins=["https://chat.example"])

    async def scene(client: Client, _: FakeScheduler) -> None:
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "llm.example:8000", "LLM.example"):
            assert (await client.get("/v1/models", {"host": host})).status == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80"):
            refused = await client.get("/v1/models", {"host": host})
            assert refused.status == 403 and refused.json()["error"]["code"] == "host_not_allowed"
            assert (await client.get("/health", {"host": host})).status == 200
        asked = {"origin": "https://chat.example", "access-control-request-method": "POST"}
        asked["access-control-request-headers"] = "authorization,content-type"
        preflight = await client.start("OPTIONS", "/v1/chat/completions", headers=asked).whole()
        assert preflight.status == 204 and preflight.headers["access-control-allow-origin"] == "https://chat.example"
        assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
        answer = await client.post("/v1/chat/completions", CHAT, {"origin": "https://chat.example"})
        assert answer.headers["access-control-allow-origin"] == "https://chat.example" and answer.headers["vary"] == "Origin"
        other = await client.post("/v1/chat/completions", CHAT, {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers

    play(tmp_path, scene, dataclasses.replace(Config(), server=server))


def test_no_host_check_on_an_open_address(tmp_path: Path) -> None:
    """Behind a proxy, or on a network, names are the proxy's matter."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        assert (await client.get("/v1/models", {"host": "any.example"})).status == 200

    play(tmp_path, scene, dataclasses.replace(Config(), server=Server(host="0.0.0.0")))


@pytest.mark.parametrize(("names", "status"), [(["m"], 200), (["m", "b"], 404)])
def test_any_name_is_the_only_model(tmp_path: Path, names: list[str], status: int) -> None:
    """With `default_model` only, and where there is one; the reply says which. The 404 lists what is served."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        response = await client.post("/v1/chat/completions", {**CHAT, "model": "gpt-9"})
        assert response.status == status
        assert response.json()["model"] == "m" if status == 200 else "`m`, `b`" in response.json()["error"]["message"]

    config = dataclasses.replace(Config(), default_model="only")
    play(tmp_path, scene, config, models=[served(tmp_path, name) for name in names])


def test_a_name_that_is_not_served_is_a_404_by_default(tmp_path: Path) -> None:
    async def scene(client: Client, _: FakeScheduler) -> None:
        assert (await client.post("/v1/chat/completions", {**CHAT, "model": "gpt-9"})).status == 404

    play(tmp_path, scene)


def test_priorities_and_salts_reach_the_engine(tmp_path: Path) -> None:
    async def scene(client: Client, peer: FakeScheduler) -> None:
        await client.post("/v1/chat/completions", {**CHAT, "priority": "background", "cache_salt": "s"})
        request = peer.wait_for(Generate)[0]
        assert (request.priority, request.cache_salt) == ("background", "s")

    play(tmp_path, scene)
