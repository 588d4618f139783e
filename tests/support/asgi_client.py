"""An ASGI client for tests: it stays connected until told otherwise, and reads a stream only as fast as the test does.

Falcon's own simulator signals a disconnect as soon as the body is sent, which this application takes for a client that left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    def frames(self) -> list[str]:
        """The data of each server-sent event."""
        lines = self.body.decode().split("\n\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    def chunks(self) -> list[Any]:
        return [json.loads(frame) for frame in self.frames() if frame != "[DONE]"]


class Exchange:
    """One request in hand. `window` chunks of the response are taken unread; more make the application's send wait."""

    def __init__(self, app: Any, scope: dict[str, Any], body: list[bytes], window: int) -> None:
        self.response = Response()
        self._body = body
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(window)
        self._started = asyncio.Event()
        self.task = asyncio.create_task(app(scope, self._receive, self._send))
        self.task.add_done_callback(lambda _: self._started.set())

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: dict[str, Any]) -> None:
        if self._gone.is_set():
            return
        if event["type"] == "http.response.start":
            self.response.status = event["status"]
            self.response.headers = {name.decode(): value.decode() for name, value in event["headers"]}
            self._started.set()
            return
        if event.get("body"):
            await self._parts.put(event["body"])
        if not event.get("more_body", False):
            await self._parts.put(None)

    async def head(self) -> Response:
        await asyncio.wait_for(self._started.wait(), 10)
        return self.response

    async def part(self) -> bytes | None:
        """The next piece of the body, None at its end."""
        data = await asyncio.wait_for(self._parts.get(), 10)
        self.response.body += data or b""
        return data

    async def whole(self) -> Response:
        while await self.part() is not None:
            pass
        await asyncio.wait_for(self.task, 10)
        return self.response

    def disconnect(self) -> None:
        self._gone.set()


class Client:
    def __init__(self, app: Any) -> None:
        self._app = app

    def start(
        self,
        method: str,
        path: str,
        body: bytes | list[bytes] = b"",
        headers: dict[str, str] | None = None,
        window: int = 1000,
    ) -> Exchange:
        parts = list(body) if isinstance(body, list) else [body]
        named = {"host": "localhost", "content-length": str(sum(map(len, parts))), **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in named.items() if value],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        return Exchange(self._app, scope, parts, window)

    def begin(self, path: str, document: Any, headers: dict[str, str] | None = None, window: int = 1000) -> Exchange:
        """POSTs a JSON document; the answer is read piece by piece."""
        return self.start(
            "POST", path, json.dumps(document).encode(), {"content-type": "application/json", **(headers or {})}, window
        )

    async def post(self, path: str, document: Any, headers: dict[str, str] | None = None) -> Response:
        return await self.begin(path, document, headers).whole()

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Response:
        return await self.start("GET", path, headers=headers).whole()


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[Client]:
    """Runs the application's start-up and shutdown around the block."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, incoming.get, outgoing.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await outgoing.get())["type"] == "lifespan.startup.complete"
    try:
        yield Client(app)
    finally:
        await incoming.put({"type": "lifespan.shutdown"})
        assert (await outgoing.get())["type"] == "lifespan.shutdown.complete"
        await task
