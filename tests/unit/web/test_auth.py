"""API keys at the door: which routes need one, which headers carry it, and what is said to those without."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from asgi_client import Client, lifespan
from byte_text import load_byte_text
from fake_scheduler import FakeScheduler, model_info

from helexa.config_tables import Config, Keys
from helexa.keys import key_file
from helexa.web.app import create_app
from ipc.messages import Generate

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
MESSAGES = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
OPEN = ("/health", "/ready")
CLOSED = (
    "/v1/models",
    "/models",
    "/v1/models/m",
    "/metrics",
    "/openapi.json",
    "/nowhere",
    "/health/x",
    "//health",
    "/v1//models",
)


def play(folder: Path, scene: Any, **keys: Any) -> list[str]:
    """Runs a scene against an application with a key file; returns the keys that the scheduler was told."""
    told: list[str] = []

    async def main() -> None:
        config = Config(keys=Keys(file=str(folder / "keys.json"), **keys))
        async with lifespan(create_app(config, folder, load_byte_text)) as client, asyncio.timeout(30):
            await scene(client)

    file = folder / "model.gguf"
    file.write_bytes(b"")
    with FakeScheduler(folder, models=[model_info(files={"gguf": str(file)})]) as scheduler:
        asyncio.run(main())
        told += [message.key for message in scheduler.received if isinstance(message, Generate)]
    return told


@pytest.fixture
def made(tmp_path: Path) -> tuple[key_file.Key, str]:
    key, token = key_file.make("someone")
    key_file.save(tmp_path / "keys.json", [key])
    return key, token


def test_without_a_key_only_health_and_ready_answer(tmp_path, made):
    """401 in the route's own envelope, before anything else is looked at, and the header that asks for a key."""

    async def scene(client: Client) -> None:
        for path in OPEN:
            assert (await client.get(path)).status in (200, 503)  # 503: not ready yet
        for path in CLOSED:
            response = await client.get(path)
            assert response.status == 401, path
            assert response.json()["error"]["type"] == "authentication_error"
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer" and "x-should-retry" not in response.headers
        for body in (CHAT, {"nonsense": 1}):
            assert (await client.post("/v1/chat/completions", body)).status == 401
        anthropic = await client.post("/v1/messages", MESSAGES)
        assert anthropic.status == 401
        assert anthropic.json()["type"] == "error" and anthropic.json()["error"]["type"] == "authentication_error"

    assert play(tmp_path, scene) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", {"model": "m", "prompt": "a"}), ("/v1/messages", MESSAGES)],
)
def test_both_headers_carry_a_key_on_every_route(tmp_path, made, path, body):
    """And the scheduler is told whose the work is, by the key's id."""
    key, token = made

    async def scene(client: Client) -> None:
        for headers in ({"authorization": f"Bearer {token}"}, {"authorization": f"bearer  {token}"}, {"x-api-key": token}):
            assert (await client.post(path, body, headers=headers)).status == 200

    assert play(tmp_path, scene) == [key.id] * 3


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer hx-wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Basic TOKEN"},
        {"authorization": "TOKEN"},
        {"x-api-key": "TOKEN."},
        {"x-api-key": "x" * 10_000},
        {"authorization": "Bearer TOKEN TOKEN"},
    ],
)
def test_a_wrong_key_is_a_401(tmp_path, made, headers):
    _, token = made

    async def scene(client: Client) -> None:
        given = {name: value.replace("TOKEN", token) for name, value in headers.items()}
        response = await client.post("/v1/chat/completions", CHAT, headers=given)
        assert response.status == 401
        assert token not in response.body.decode()

    assert play(tmp_path, scene) == []


def test_routes_can_be_opened(tmp_path, made):
    async def scene(client: Client) -> None:
        assert (await client.get("/v1/models")).status == 200
        assert (await client.get("/models")).status == 401

    play(tmp_path, scene, open_routes=["/v1/models"])


def test_a_key_file_that_goes_bad_lets_nobody_in(tmp_path, made):
    """503 for everybody, the holders of good keys too, until it is mended; a revoked key is a 401 from then on."""
    _, token = made
    headers = {"authorization": f"Bearer {token}"}

    async def scene(client: Client) -> None:
        assert (await client.get("/v1/models", headers=headers)).status == 200
        os.chmod(tmp_path / "keys.json", 0o644)
        response = await client.get("/v1/models", headers=headers)
        assert response.status == 503 and response.json()["error"]["code"] == "keys_unavailable"
        assert str(tmp_path) not in response.body.decode()
        assert (await client.get("/health")).status == 200
        os.chmod(tmp_path / "keys.json", 0o600)
        assert (await client.get("/v1/models", headers=headers)).status == 200
        key_file.save(tmp_path / "keys.json", [])
        assert (await client.get("/v1/models", headers=headers)).status == 401

    play(tmp_path, scene)


def test_a_preflight_needs_no_key(tmp_path, made):
    """A browser asks it without one; nothing is served by it."""
    from helexa.config_tables import Server

    async def main() -> None:
        config = Config(server=Server(cors_origins=["https://chat.example"]), keys=Keys(file=str(tmp_path / "keys.json")))
        headers = {"origin": "https://chat.example", "access-control-request-method": "POST"}
        async with lifespan(create_app(config, tmp_path, load_byte_text)) as client, asyncio.timeout(30):
            response = await client.start("OPTIONS", "/v1/chat/completions", headers=headers).whole()
            assert response.status == 204 and not response.body
            assert (await client.start("OPTIONS", "/v1/chat/completions").whole()).status == 401

    with FakeScheduler(tmp_path, models=[]):
        asyncio.run(main())
