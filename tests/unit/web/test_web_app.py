"""The whole web tier but the server in front, between an ASGI client and a peer that speaks the scheduler's side."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from asgi_client import Client, Response, lifespan
from byte_text import load_byte_text
from fake_scheduler import FakeScheduler, model_info
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from wire_replies import strict

from helexa.config_tables import Config, Server, Streaming
from helexa.web import generate
from helexa.web.app import create_app
from helexa.web.prepare import choice_seed
from helexa.web.resources import metrics
from ipc import endpoints
from ipc.messages import Abort, Credit, Generate, ModelInfo

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
Scene = Callable[[Client, FakeScheduler], Awaitable[None]]


def served(run_dir: Path) -> ModelInfo:
    file = run_dir / "model.gguf"
    file.write_bytes(b"")
    return model_info(files={"gguf": str(file)})


def play(run_dir: Path, scene: Scene, config: Config | None = None, **peer: Any) -> None:
    async def main() -> None:
        async with lifespan(create_app(config or Config(), run_dir, load_byte_text)) as client, asyncio.timeout(30):
            await scene(client, scheduler)

    with FakeScheduler(run_dir, **{"models": [served(run_dir)], **peer}) as scheduler:
        asyncio.run(main())


def check_error(response: Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    assert response.status == status
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    assert response.headers["x-request-id"]
    return dict(body["error"])


def test_chat_whole_and_streamed_agree(tmp_path: Path) -> None:
    """Both are what the openai package's types take strictly, and say the same text, reason and usage."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        whole = await client.post(CHAT, HELLO)
        assert whole.status == 200 and strict(ChatCompletion, whole.body) == []
        streamed = await client.post(CHAT, {**HELLO, "stream": True, "stream_options": {"include_usage": True}})
        assert streamed.body.startswith(b": ok\n\n") and streamed.frames()[-1] == "[DONE]"
        for frame in streamed.frames()[:-1]:
            assert strict(ChatCompletionChunk, frame) == []
        chunks = streamed.chunks()
        assert len({chunk["id"] for chunk in chunks}) == 1
        choice = whole.json()["choices"][0]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        assert text == choice["message"]["content"] == "hello"
        assert chunks[-2]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole.json()["usage"]
        assert whole.json()["usage"]["completion_tokens"] == 6

    play(tmp_path, scene)


def test_stream_headers(tmp_path: Path) -> None:
    """A stream is neither cached, buffered nor compressed; the headers with the seed come before the first token."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        headers = {"x-request-id": "mine-1", "accept": "application/json", "accept-encoding": "gzip"}
        exchange = client.begin(CHAT, {**HELLO, "stream": True, "seed": 5}, headers)
        head = await exchange.head()
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert head.headers["cache-control"] == "no-cache" and head.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in head.headers
        assert head.headers["x-helexa-seed"] == "5" and head.headers["x-request-id"] == "mine-1"
        assert await exchange.part() == b": ok\n\n"
        await asyncio.to_thread(peer.allow, 100)
        await exchange.whole()

    play(tmp_path, scene, allowed=0)


def test_completions_of_several_prompts(tmp_path: Path) -> None:
    """Choices of two prompts, two each, in order; every one is an engine request with its own seeds."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        body = {"model": "m", "prompt": ["ab", "cd"], "n": 2, "seed": 3, "echo": True, "return_token_ids": True}
        response = await client.post(TEXT, body)
        assert all("token_ids" in path for path in strict(Completion, response.body))
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [choice["text"] for choice in choices] == ["abab", "abab", "cdcd", "cdcd"]
        assert choices[2]["prompt_token_ids"] == [99, 100] and choices[2]["token_ids"] == [99, 100, 256]
        assert response.json()["usage"]["prompt_tokens"] == 4 and response.json()["usage"]["completion_tokens"] == 12
        requests = peer.wait_for(Generate, 2)
        assert [request.seeds for request in requests] == [[3, choice_seed(3, 1)]] * 2
        assert len({request.req_id for request in requests}) == 2

    play(tmp_path, scene)


def test_a_stop_string_ends_the_reply(tmp_path: Path) -> None:
    """The engine is told where, and the usage counts up to the token that completed it, though it had run on."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        exchange = client.begin(TEXT, {"model": "m", "prompt": "abSTOPxyz", "stop": ["STOP"], "max_tokens": 50})
        response = await exchange.whole()
        assert response.json()["choices"][0]["text"] == "ab"
        assert response.json()["choices"][0]["finish_reason"] == "stop"
        assert response.json()["usage"]["completion_tokens"] == 6
        assert peer.wait_for(Abort)[0] == Abort(peer.wait_for(Generate)[0].req_id, 0, "stop", 6)

    play(tmp_path, scene, allowed=8)


def test_a_client_that_leaves_is_noticed_at_once(tmp_path: Path) -> None:
    """While nothing is generated: in a stream and in a whole reply the engine is told, and the response ends."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        bodies: list[dict[str, Any]] = [{**HELLO, "stream": True}, HELLO]
        for number, body in enumerate(bodies, start=1):
            exchange = client.begin(CHAT, body)
            await asyncio.to_thread(peer.wait_for, Generate, number)
            if "stream" in body:
                assert await exchange.part() == b": ok\n\n"
            exchange.disconnect()
            await asyncio.to_thread(peer.wait_for, Abort, number)
            await asyncio.wait_for(exchange.task, 10)
        assert [abort.reason for abort in peer.wait_for(Abort, 2)] == ["cancel", "cancel"]

    play(tmp_path, scene, allowed=0)


def test_a_client_that_leaves_the_queue_is_noticed(tmp_path: Path) -> None:
    """Before the scheduler has said anything at all."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        exchange = client.begin(CHAT, HELLO)
        await asyncio.to_thread(peer.wait_for, Generate)
        exchange.disconnect()
        await asyncio.to_thread(peer.wait_for, Abort)
        await asyncio.wait_for(exchange.task, 10)

    play(tmp_path, scene, silent=True)


@pytest.mark.parametrize("stream", [False, True])
def test_who_waited_in_vain_is_told_with_a_status(tmp_path: Path, stream: bool) -> None:
    """A request that found no seat in time was answered inside a stream of status 200 that had been opened for it."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        exchange = client.begin(CHAT, {**HELLO, "stream": stream})
        await asyncio.to_thread(peer.wait_for, Generate)
        await asyncio.to_thread(peer.give_up, "queue_timeout", "no seat came free", 1.0)
        response = await exchange.whole()
        check_error(response, 503, "queue_timeout")
        assert response.headers["retry-after"] == "1"

    play(tmp_path, scene, full=True)


def test_a_client_that_does_not_read_stops_only_itself(tmp_path: Path) -> None:
    """The engine gets no credit for what the client's connection has not taken; once it reads, all of it comes."""
    config = dataclasses.replace(Config(), streaming=Streaming(credit_tokens=4))

    async def scene(client: Client, peer: FakeScheduler) -> None:
        slow = client.begin(TEXT, {"model": "m", "prompt": "x" * 64, "stream": True}, window=1)
        await slow.head()
        other = await client.post(TEXT, {"model": "m", "prompt": "y" * 64})
        assert other.json()["choices"][0]["text"] == "y" * 64
        first = peer.wait_for(Generate)[0].req_id
        credits = [credit.upto for credit in peer.received if isinstance(credit, Credit) and credit.req_id == first]
        assert max(credits, default=0) <= 8  # what was asked for, and as much again for the one part that the connection took
        whole = await slow.whole()
        assert "".join(chunk["choices"][0]["text"] for chunk in whole.chunks()) == "x" * 64

    play(tmp_path, scene, config)


def test_silence_is_filled_with_comments(tmp_path: Path) -> None:
    config = dataclasses.replace(Config(), streaming=Streaming(keep_alive_s=0.1))

    async def scene(client: Client, peer: FakeScheduler) -> None:
        exchange = client.begin(CHAT, {**HELLO, "stream": True})
        assert [await exchange.part() for _ in range(3)] == [b": ok\n\n", b": keep-alive\n\n", b": keep-alive\n\n"]
        await asyncio.to_thread(peer.allow, 100)
        assert (await exchange.whole()).frames()[-1] == "[DONE]"

    play(tmp_path, scene, config, allowed=0)


def test_a_scheduler_killed_in_a_stream_is_a_pause(tmp_path: Path) -> None:
    """The stream's transcript is the undisturbed one, but for its id."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        exchange = client.begin(CHAT, {**HELLO, "stream": True, "n": 2, "return_token_sha": True})
        while b'"content":"h' not in exchange.response.body:  # deltas that came together are one piece
            await exchange.part()
        await asyncio.to_thread(peer.kill)
        with FakeScheduler(tmp_path, incarnation=2, models=[served(tmp_path)], overlap=2):
            disturbed = (await exchange.whole()).chunks()
            again = (await client.post(CHAT, {**HELLO, "stream": True, "n": 2, "return_token_sha": True})).chunks()
        for index in (0, 1):
            texts = [
                "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"][0]["index"] == index)
                for chunks in (disturbed, again)
            ]
            assert texts == ["hello", "hello"]
        shas = [[c["choices"][0]["token_sha"] for c in chunks if "token_sha" in c["choices"][0]] for chunks in (disturbed, again)]
        assert shas[0] == shas[1] and len(shas[0]) == 2

    play(tmp_path, scene, allowed=3)


def test_refusals_before_the_stream_opens(tmp_path: Path) -> None:
    """What the scheduler refuses is an HTTP error also when a stream was asked for; overload is not to be retried blindly."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        for body in (HELLO, {**HELLO, "stream": True}):
            response = await client.post(CHAT, body)
            check_error(response, 503, "queue_full")
            assert response.headers["retry-after"] == "3" and response.headers["x-should-retry"] == "false"

    play(tmp_path, scene, refuse=("queue_full", "256 requests wait", 2.5))


def test_a_failed_row_fails_its_request(tmp_path: Path) -> None:
    """Before a stream's start it is a 500; in a stream, an error event and no [DONE]."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        streamed = client.begin(CHAT, {**HELLO, "stream": True})
        whole = client.begin(CHAT, HELLO)
        await asyncio.to_thread(peer.wait_for, Generate, 2)
        await asyncio.to_thread(peer.fail, "error", "the logits are NaN")
        error = check_error(await whole.whole(), 500, "generation_failed")
        assert "the logits are NaN" in error["message"]
        frames = (await streamed.whole()).frames()
        assert json.loads(frames[-1])["error"]["code"] == "generation_failed" and "[DONE]" not in frames

    play(tmp_path, scene, allowed=2)


def test_too_long_a_prompt_is_a_400_in_streams_too(tmp_path: Path) -> None:
    async def scene(client: Client, _: FakeScheduler) -> None:
        long = {"model": "m", "messages": [{"role": "user", "content": "a" * 256}]}
        for body in (long, {**long, "stream": True}):
            check_error(await client.post(CHAT, body), 400, "context_length_exceeded", "messages")
        check_error(await client.post(TEXT, {"model": "m", "prompt": ""}), 400, "empty_prompt", "prompt")

    play(tmp_path, scene)


def test_every_error_has_the_envelope(tmp_path: Path) -> None:
    """Falcon's own errors, the body's, and the fields', on every kind of route."""
    config = dataclasses.replace(Config(), server=Server(max_body_bytes=1024))
    json_type = {"content-type": "application/json"}

    async def scene(client: Client, _: FakeScheduler) -> None:
        check_error(await client.get("/nothing"), 404, "not_found")
        wrong_method = await client.get(CHAT)
        check_error(wrong_method, 405, "method_not_allowed")
        assert "POST" in wrong_method.headers["allow"]
        check_error(
            await client.start("POST", CHAT, b"{}", {"content-type": "text/plain"}).whole(), 415, "unsupported_media_type"
        )
        check_error(await client.start("POST", CHAT, b"{}").whole(), 415, "unsupported_media_type")
        check_error(
            await client.start("POST", CHAT, b"{}", {**json_type, "content-encoding": "gzip"}).whole(),
            415,
            "unsupported_media_type",
        )
        check_error(await client.start("POST", CHAT, b"{", json_type).whole(), 400, "invalid_json")
        check_error(await client.start("POST", CHAT, b"{}", json_type).whole(), 400, "invalid_value", "model")
        check_error(await client.post(CHAT, {**HELLO, "colour": 1}), 400, "unknown_parameter", "colour")
        check_error(await client.post(CHAT, {**HELLO, "tools": [{}]}), 400, "unsupported_parameter", "tools[0].type")
        check_error(await client.post(CHAT, {**HELLO, "model": "nope"}), 404, "model_not_found", "model")
        check_error(
            await client.post(CHAT, {"model": "m", "messages": [{"role": "assistant", "content": "x"}]}),
            422,
            "template_error",
            "messages",
        )
        check_error(await client.get("/v1/models/nope"), 404, "model_not_found", "model")
        check_error(await client.get("/metrics"), 503, "scheduler_down")
        check_error(await client.post(CHAT, {**HELLO, "user": "u" * 2000}), 413, "body_too_large")

    play(tmp_path, scene, config)


def test_the_body_is_capped_however_it_is_framed(tmp_path: Path) -> None:
    """A body without a content-length is counted as it comes; one far over the limit is not read to its end."""
    config = dataclasses.replace(Config(), server=Server(max_body_bytes=1024))
    chunked = {"content-type": "application/json", "content-length": ""}

    async def scene(client: Client, _: FakeScheduler) -> None:
        check_error(await client.start("POST", CHAT, [b"x" * 512] * 3, chunked).whole(), 413, "body_too_large")
        endless = [b"x" * 1024] * 1000
        exchange = client.start("POST", CHAT, endless, chunked)
        check_error(await exchange.whole(), 413, "body_too_large")
        assert len(exchange._body) > 900, "most of it was left unread"
        fits = json.dumps(HELLO).encode()
        assert (await client.start("POST", CHAT, [fits[:9], fits[9:]], chunked).whole()).status == 200

    play(tmp_path, scene, config)


def test_an_unexpected_error_is_a_500_that_names_the_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback goes to the log under the request's id, and nothing of it to the client."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("helexa.web.resources.generating.prepare", broken)

    async def scene(client: Client, _: FakeScheduler) -> None:
        response = await client.post(CHAT, HELLO, {"x-request-id": "find-me"})
        error = check_error(response, 500, "internal_error")
        assert "find-me" in error["message"] and "secret" not in error["message"]
        assert response.headers["x-should-retry"] == "false"

    play(tmp_path, scene)
    assert any("find-me" in record.getMessage() and record.exc_info for record in caplog.records)


def test_request_ids(tmp_path: Path) -> None:
    """A client's own comes back if it is a plain word; anything else is replaced. It never names the engine's request."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        for _ in range(2):
            response = await client.post(CHAT, HELLO, {"x-request-id": "abc-1"})
            assert response.headers["x-request-id"] == "abc-1"
        assert len({request.req_id for request in peer.wait_for(Generate, 2)}) == 2
        for bad in ("a b", "x" * 65, "a\u00e9"):
            assert (await client.get("/health", {"x-request-id": bad})).headers["x-request-id"].startswith("req-")

    play(tmp_path, scene)


def test_connections_are_capped(tmp_path: Path) -> None:
    """One more than server.max_connections gets a 503; health stays open; a place comes free when a request ends."""
    config = dataclasses.replace(Config(), server=Server(max_connections=1))

    async def scene(client: Client, peer: FakeScheduler) -> None:
        first = client.begin(CHAT, {**HELLO, "stream": True})
        assert await first.part() == b": ok\n\n"
        check_error(await client.post(CHAT, HELLO), 503, "too_many_connections")
        assert (await client.get("/health")).status == 200
        await asyncio.to_thread(peer.allow, 100)
        await first.whole()
        assert (await client.post(CHAT, HELLO)).status == 200

    play(tmp_path, scene, config, allowed=0)


def test_models_and_readiness(tmp_path: Path) -> None:
    """OpenAI's keys and ours; /ready says what is waited for."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list" and [entry["id"] for entry in listed["data"]] == ["m", "a/b"]
        assert {path for entry in listed["data"] for path in strict(Model, json.dumps(entry))} == {
            ".context_length",
            ".max_output_tokens",
            ".status",
            ".capabilities",
        }
        assert listed["data"][0]["capabilities"]["chat"] is True and listed["data"][1]["capabilities"] is None
        assert (await client.get("/v1/models/a/b")).json()["status"] == "loading"
        ready = await client.get("/ready")
        assert ready.status == 200 and ready.json()["state"] == "ready" and ready.json()["incarnation"] == 1
        assert ready.json()["models"][0] == {"name": "m", "state": "ready", "ops": "reference", "remedy": "", "error": ""}
        await asyncio.to_thread(peer.change_models, [model_info(state="failed", error="no memory", remedy="use a smaller one")])
        while (response := await client.get("/ready")).status == 200:
            await asyncio.sleep(0)
        assert response.json()["state"] == "failed" and response.json()["models"][0]["error"] == "no memory"
        assert response.headers["retry-after"] == "1"

    play(tmp_path, scene, models=[served(tmp_path), model_info("a/b", state="loading")])


def test_without_a_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker lives and says so; it is not ready; requests get a 503 that may be retried."""
    monkeypatch.setattr("helexa.web.engine_client.ADMISSION_WAIT_S", 0.05)

    async def main() -> None:
        async with lifespan(create_app(Config(), tmp_path, load_byte_text)) as client:
            assert (await client.get("/health")).status == 200
            ready = await client.get("/ready")
            assert ready.status == 503 and ready.json()["activation"].pop("state") == "pending"
            assert {name: ready.json()[name] for name in ("state", "models", "incarnation")} == {
                "state": "starting",
                "models": [],
                "incarnation": None,
            }
            response = await client.post(CHAT, HELLO)
            check_error(response, 503, "scheduler_down")
            assert response.headers["x-should-retry"] == "true" and response.headers["retry-after"] == "1"

    asyncio.run(main())


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is not taken in time is withdrawn and gets a 503."""
    monkeypatch.setattr(generate, "ADMISSION_WAIT_S", 0.05)

    async def scene(client: Client, peer: FakeScheduler) -> None:
        check_error(await client.post(CHAT, HELLO), 503, "scheduler_down")
        await asyncio.to_thread(peer.wait_for, Abort)

    play(tmp_path, scene, silent=True)


def test_metrics_come_from_the_control_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text as the scheduler gives it; a scheduler that says no, nothing, or nonsense is a 503."""
    answers: list[bytes | None] = [
        b'{"ok":true,"text":"helexa_requests_total 3\\n"}\n',
        b'{"ok":false,"error":"no"}\n',
        b"",
        b"nonsense\n",
        None,
    ]
    monkeypatch.setattr(metrics, "TIMEOUT_S", 0.2)
    asked: list[Any] = []

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(json.loads(await reader.readline()))
        answer = answers[len(asked) - 1]
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async def scene(client: Client, _: FakeScheduler) -> None:
        async with await asyncio.start_unix_server(control, str(endpoints.control_socket(tmp_path))):
            response = await client.get("/metrics")
            assert response.status == 200 and response.body == b"helexa_requests_total 3\n"
            assert response.headers["content-type"].startswith("text/plain")
            for _answer in answers[1:]:
                check_error(await client.get("/metrics"), 503, "scheduler_down")
        assert asked == [{"v": 1, "cmd": "metrics"}] * len(answers)

    play(tmp_path, scene)


def test_one_line_is_logged_for_a_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its ids, counts and time; never its text."""
    caplog.set_level("INFO")

    async def scene(client: Client, _: FakeScheduler) -> None:
        await client.post(CHAT, HELLO, {"x-request-id": "one"})
        await client.post(CHAT, {**HELLO, "stream": True}, {"x-request-id": "two"})

    play(tmp_path, scene)
    lines = [record for record in caplog.records if record.name == "helexa.web.request"]
    assert [record.getMessage() for record in lines] == ["request done", "request done"]
    fields = [record.__dict__["fields"] for record in lines]
    assert [entry["req_id"] for entry in fields] == ["one", "two"]
    assert all(entry["prompt_tokens"] == 5 and entry["output_tokens"] == 6 for entry in fields)
    assert "hello" not in str(fields)
