"""/v1/embeddings through the web tier, between an ASGI client and a scheduler's peer."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_client import Client, lifespan
from byte_text import load_byte_text
from fake_scheduler import FakeScheduler, model_info
from openai.types import CreateEmbeddingResponse
from wire_replies import strict

from helexa.config import Config
from helexa.web.app import create_app
from helexa.web.embed import AT_ONCE, normalised
from ipc.messages import Generate

ASKED = {"model": "m", "input": ["ab", "c"]}
Scene = Callable[[Client, FakeScheduler], Awaitable[None]]


def vector(ids: list[int]) -> bytes:
    """What the peer makes of a prompt: two numbers in the ratio of its first id to its length."""
    return struct.pack("<2f", ids[0] if ids else 0, len(ids))


def play(run_dir: Path, scene: Scene, pooling: str = "mean", **peer: Any) -> None:
    file = run_dir / "model.gguf"
    file.write_bytes(b"")
    info = model_info("m", files={"gguf": str(file)}, context=64, pooling=pooling)

    async def main() -> None:
        async with lifespan(create_app(Config(), run_dir, load_byte_text)) as client, asyncio.timeout(30):
            await scene(client, scheduler)

    with FakeScheduler(run_dir, **{"models": [info], "reply": lambda *_: ([256], "length", None), **peer}) as scheduler:
        scheduler.pooled = vector
        asyncio.run(main())


def test_vectors_in_order(tmp_path: Path) -> None:
    """Of length 1, one a prompt, in the package's type; as numbers or as bytes, whole or shortened; each prompt a request."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        whole = await client.post("/v1/embeddings", ASKED)
        assert whole.status == 200 and strict(CreateEmbeddingResponse, whole.body) == []
        first, second = (item["embedding"] for item in whole.json()["data"])
        np.testing.assert_allclose(first, np.array([97, 2]) / np.hypot(97, 2), rtol=1e-6)
        np.testing.assert_allclose(second, np.array([99, 1]) / np.hypot(99, 1), rtol=1e-6)
        assert whole.json()["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        encoded = (await client.post("/v1/embeddings", {**ASKED, "encoding_format": "base64"})).json()["data"][0]["embedding"]
        assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == first
        short = (await client.post("/v1/embeddings", {**ASKED, "dimensions": 1})).json()
        assert [item["embedding"] for item in short["data"]] == [[1.0], [1.0]]
        requests = [message for message in peer.received if isinstance(message, Generate)][:2]
        assert sorted(request.prompt_ids for request in requests) == [[97, 98], [99]]
        assert {(request.params.max_tokens, request.params.prompt_logprobs) for request in requests} == {(1, 0)}

    play(tmp_path, scene)


def test_many_inputs_are_asked_in_turn(tmp_path: Path) -> None:
    """The engine has a bounded number of them in hand."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        begun = client.begin("/v1/embeddings", {"model": "m", "input": ["a"] * 40, "priority": "background"})
        await asyncio.to_thread(peer.wait_for, Generate, AT_ONCE)
        assert len([message for message in peer.received if isinstance(message, Generate)]) == AT_ONCE
        await asyncio.to_thread(peer.allow, 10)
        while len([message for message in peer.received if isinstance(message, Generate)]) < 40:
            await asyncio.to_thread(peer.allow, 10)
        await asyncio.to_thread(peer.allow, 10)
        assert len((await begun.whole()).json()["data"]) == 40
        assert all(message.priority == "background" for message in peer.received if isinstance(message, Generate))

    play(tmp_path, scene, allowed=0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"input": ""}, "empty_prompt"),
        ({"input": []}, "empty_prompt"),
        ({"input": "x" * 64}, "context_length_exceeded"),
        ({"input": [5, "a"]}, "invalid_value"),
        ({"input": [9999]}, "invalid_value"),
        ({"dimensions": 3}, "invalid_value"),
        ({"model": "other"}, "model_not_found"),
    ],
    ids=str,
)
def test_refusals(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    async def scene(client: Client, _: FakeScheduler) -> None:
        refused = await client.post("/v1/embeddings", {**ASKED, **fields})
        assert refused.json()["error"]["code"] == code and 400 <= refused.status < 500

    play(tmp_path, scene)


def test_each_kind_of_model_does_its_own(tmp_path: Path) -> None:
    """Generating from one that makes embeddings, on every route, and the other way round."""

    async def scene(client: Client, _: FakeScheduler) -> None:
        messages = [{"role": "user", "content": "hi"}]
        for path, body in (
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/responses", {"input": "a"}),
        ):
            refused = await client.post(path, {"model": "m", **body})
            assert (refused.status, refused.json()["error"]["code"]) == (400, "generation_unsupported")
        refused = await client.post("/v1/messages", {"model": "m", "messages": messages, "max_tokens": 5})
        assert refused.status == 400 and "embeddings" in refused.json()["error"]["message"]

    async def other(client: Client, _: FakeScheduler) -> None:
        refused = await client.post("/v1/embeddings", ASKED)
        assert (refused.status, refused.json()["error"]["code"]) == (400, "embeddings_unsupported")

    play(tmp_path, scene)
    play(tmp_path, other, pooling="")


def test_what_fails_in_the_engine(tmp_path: Path) -> None:
    """A refusal and a failed row are the request's errors."""

    async def refused(client: Client, _: FakeScheduler) -> None:
        answer = await client.post("/v1/embeddings", ASKED)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "queue_full") and answer.headers["retry-after"] == "2"

    async def failed(client: Client, peer: FakeScheduler) -> None:
        begun = client.begin("/v1/embeddings", ASKED)
        await asyncio.to_thread(peer.wait_for, Generate, 2)
        await asyncio.to_thread(peer.fail, "error", "not finite")
        answer = await begun.whole()
        assert answer.status == 500 and "not finite" in answer.json()["error"]["message"]

    play(tmp_path, refused, refuse=("queue_full", "full", 2.0))
    play(tmp_path, failed, allowed=0)


def test_a_client_that_leaves_takes_its_work_along(tmp_path: Path) -> None:
    """What it asked for is aborted."""

    async def scene(client: Client, peer: FakeScheduler) -> None:
        from ipc.messages import Abort

        begun = client.begin("/v1/embeddings", ASKED)
        await asyncio.to_thread(peer.wait_for, Generate, 2)
        begun.disconnect()
        await asyncio.to_thread(peer.wait_for, Abort, 2)
        await begun.task

    play(tmp_path, scene, allowed=0)


def test_a_vector_of_zeros_stays() -> None:
    assert normalised(bytes(8)).tolist() == [0.0, 0.0]
