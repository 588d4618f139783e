"""The body of a streamed reply: server-sent events, keep-alive comments, and what happens when it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from falcon.asgi import Response

from helexa.errors import RequestError
from helexa.web.generate import ClientGone, Generation
from helexa.web.wire.reply import Document, Reply, frame

OPENED = b": ok\n\n"  # the server holds the headers back until the body's first byte
KEEP_ALIVE = b": keep-alive\n\n"
OPENING_WAIT_S = 0.05  # a first token that comes so soon goes out with the headers: one write, one wake-up of the client

# A stream is never compressed, kept, or gathered up on its way.
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream:
    """An async iterator of bytes for `resp.stream`, which is closed by `close` however the response ends.

    Each item is asked for once the last one was sent, so asking extends the engine's credit (Generation.events). `ended` is
    called once, with the error that ended the stream, if any.
    """

    def __init__(
        self, generation: Generation, reply: Reply, keep_alive_s: float, ended: Callable[[BaseException | None], None]
    ) -> None:
        self._generation = generation
        self._reply = reply
        self._keep_alive_s = keep_alive_s
        self._ended = ended
        self._watcher: asyncio.Task[None] | None = None
        self._items = self._make()
        self._error: BaseException | None = ClientGone()

    def watched_by(self, watcher: asyncio.Task[None]) -> None:
        """The task that tells the generation when the client leaves; it lives as long as the stream."""
        self._watcher = watcher

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await self._items.__anext__()

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        await self._items.aclose()
        self._generation.close()
        self._ended(self._error)

    async def _make(self) -> AsyncGenerator[bytes, None]:
        unsent = OPENED + self._framed(self._reply.opening())
        try:
            async for batch in self._generation.events(self._keep_alive_s, OPENING_WAIT_S):
                data = unsent + self._framed(chunk for event in batch for chunk in self._reply.chunks(event))
                unsent = b""
                if data or not batch:
                    yield data or KEEP_ALIVE
            last = unsent + self._framed(self._reply.last_chunks(self._generation.usage()))
            self._error = None
            yield last + self._reply.end
        except ClientGone:
            return
        except RequestError as error:
            self._error = error
            yield unsent + self._framed([self._reply.failure(error)])

    def _framed(self, documents: Iterable[Document]) -> bytes:
        return b"".join(frame(document, self._reply.named) for document in documents)


def prepare(resp: Response, stream: EventStream) -> None:
    resp.set_headers(HEADERS)
    resp.stream = stream
