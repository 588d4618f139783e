"""Sends requests at a pace over HTTP, on asyncio streams. What comes is only noted, with its time; it is read after the run."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlsplit

from helexa.bench.http_reply import BadReply, HttpReply
from helexa.bench.pacing import Pace
from helexa.errors import ConfigError

READ_BYTES = 64 * 1024
REPLY_WAIT_S = 600.0


@dataclass(frozen=True)
class Address:
    """A server's base address. `path` ends with /v1."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises ConfigError. `/v1` may be left out."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"{url}: not a server's address; give one like http://127.0.0.1:8000")
        path = parts.path.rstrip("/")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), path if path.endswith("/v1") else f"{path}/v1", tls)


@dataclass
class Exchange:
    """One request and what came of it, each event with the time of its last byte. `error`: why there is no whole reply."""

    sent: float
    ended: float = 0.0
    status: int = 0
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""
    error: str = ""


async def exchange(
    address: Address, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
) -> Exchange:
    """One request on a connection of its own, as a new client's is. Never raises for what the server does."""
    seen = Exchange(time.perf_counter())
    reply = HttpReply()
    try:
        async with asyncio.timeout(REPLY_WAIT_S):
            await _converse(address, _request(address, method, path, body, headers), reply, seen)
        if not reply.complete:
            seen.error = "the connection ended before the reply did"
    except TimeoutError:
        seen.error = f"no whole reply within {REPLY_WAIT_S:g} s"
    except (OSError, BadReply) as error:
        seen.error = str(error) or type(error).__name__
    seen.ended = time.perf_counter()
    seen.status, seen.body = reply.status, bytes(reply.body)
    return seen


def _request(address: Address, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"{method} {address.path}{path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n"
        f"Accept: */*\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


async def _converse(address: Address, request: bytes, reply: HttpReply, seen: Exchange) -> None:
    context = ssl.create_default_context() if address.tls else None
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        writer.write(request)
        await writer.drain()
        while not reply.complete:
            data = await reader.read(READ_BYTES)
            now = time.perf_counter()
            if not data:
                reply.close()
                return
            seen.events += [(now, event) for event in reply.feed(data)]
    finally:
        writer.close()


T = TypeVar("T")


async def paced(bodies: Sequence[bytes], pace: Pace, ask: Callable[[bytes], Awaitable[T]]) -> list[T]:
    """`ask` for every body, when the pace says so; results in the order of the bodies."""
    begun = time.perf_counter()
    tasks: list[asyncio.Task[T]] = []
    live: set[asyncio.Task[T]] = set()

    async def one(body: bytes) -> T:
        return await ask(body)

    for body in bodies:
        while (wait := pace.wait_s(time.perf_counter() - begun, len(live), len(tasks))) != 0.0:
            if live:
                _, live = await asyncio.wait(live, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(wait or 0.0)
        task = asyncio.create_task(one(body))
        tasks.append(task)
        live.add(task)
        live = {item for item in live if not item.done()}
    return list(await asyncio.gather(*tasks))
