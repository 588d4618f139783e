"""The raw ASGI connection of a request: who notices that the client left, and how many are served at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

SCOPE_KEY = "helexa.connection"

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Connection:
    """`admitted` is False for a request over the limit of server.max_connections."""

    def __init__(self, receive: Receive, admitted: bool) -> None:
        self._receive = receive
        self.admitted = admitted

    def watch(self, on_gone: Callable[[], None]) -> asyncio.Task[None]:
        """Calls `on_gone` as soon as the client leaves; start it once the body is read, cancel it when the reply is sent.

        A send to a client that left is silently dropped, and a stream that waits for the engine sends nothing at all: only this
        sees it.
        """
        return asyncio.create_task(self._wait(on_gone))

    @asynccontextmanager
    async def watching(self, on_gone: Callable[[], None]) -> AsyncIterator[None]:
        task = self.watch(on_gone)
        try:
            yield
        finally:
            task.cancel()

    async def _wait(self, on_gone: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        on_gone()


class ConnectionLimit:
    """Counts the requests in hand, since the server in front does not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    def __enter__(self) -> bool:
        self.count += 1
        return self.count <= self._most

    def __exit__(self, *_: object) -> None:
        self.count -= 1
