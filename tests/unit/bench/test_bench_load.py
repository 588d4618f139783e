"""The load generator against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from helexa.bench.load import Address, Exchange, exchange, paced
from helexa.bench.pacing import ClosedLoop, OpenLoop
from helexa.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(script: Script, ask: Callable[[Address], Awaitable[object]]) -> object:
    """What `ask` returns, with a server on a free port that answers every connection by `script`."""

    async def run() -> object:
        server = await asyncio.start_server(script, "127.0.0.1", 0)
        async with server:
            return await ask(Address("127.0.0.1", server.sockets[0].getsockname()[1], "/v1", False))

    return asyncio.run(run())


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    return head, await reader.readexactly(length)


def test_events_are_noted_as_they_come():
    """The second event is sent only once the client has said, by the test, that it holds the first."""
    gate = asyncio.Event()

    async def script(reader, writer):
        head, body = await read_request(reader)
        assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:") and body == b"asked"
        writer.write(HEAD + b"data: one\n\n")
        await gate.wait()
        writer.write(b"data: [DONE]\n\n")
        writer.close()

    async def ask(address: Address) -> Exchange:
        asyncio.get_running_loop().call_later(0.01, gate.set)
        return await exchange(address, "POST", "/completions", b"asked")

    seen = against(script, ask)
    assert isinstance(seen, Exchange) and (seen.status, seen.error) == (200, "")
    (first, one), (second, done) = seen.events
    assert (one, done) == (b"one", b"[DONE]") and seen.sent < first < second <= seen.ended


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "ended before the reply did"),
        (b"", "ended before the reply did"),
        (b"nonsense\r\n\r\n", "not an HTTP reply"),
    ],
)
def test_what_goes_wrong_is_an_error_of_that_request(reply, error):
    async def script(reader, writer):
        await read_request(reader)
        writer.write(reply)
        writer.close()

    seen = against(script, lambda address: exchange(address, "GET", "/models"))
    assert isinstance(seen, Exchange) and error in seen.error


def test_further_headers_are_sent():
    """An API key, beside the headers that every request has."""

    async def script(reader, writer):
        head, body = await read_request(reader)
        lines = head.decode().splitlines()
        assert "Authorization: Bearer k" in lines and "Content-Length: 1" in lines and body == b"x"
        writer.write(HEAD + b"data: [DONE]\n\n")
        writer.close()

    key = {"Authorization": "Bearer k"}
    seen = against(script, lambda address: exchange(address, "POST", "/completions", b"x", key))
    assert isinstance(seen, Exchange) and [data for _, data in seen.events] == [b"[DONE]"]


def test_nobody_there():
    seen = asyncio.run(exchange(Address("127.0.0.1", 1, "/v1", False), "GET", "/models"))
    assert seen.error and seen.status == 0


def test_a_closed_loop_never_has_more_open_and_keeps_the_order():
    """Ten requests by three clients: three are open at once, and results lie in the order of the bodies."""
    open_now, most = 0, 0

    async def ask(body: bytes) -> bytes:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(1 + int(body) % 4):
            await asyncio.sleep(0)
        open_now -= 1
        return body

    bodies = [b"%d" % number for number in range(10)]
    assert asyncio.run(paced(bodies, ClosedLoop(3), ask)) == bodies
    assert most == 3


def test_an_open_loop_does_not_wait_for_answers():
    """No request is answered until the last was sent."""
    everyone = asyncio.Event()
    sent = []

    async def ask(body: bytes) -> bytes:
        sent.append(body)
        if len(sent) == 5:
            everyone.set()
        await everyone.wait()
        return body

    bodies = [b"%d" % number for number in range(5)]
    assert asyncio.run(paced(bodies, OpenLoop(1000.0, 5, 0), ask)) == bodies


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000, "/v1", False)),
        ("127.0.0.1:8000/", Address("127.0.0.1", 8000, "/v1", False)),
        ("http://h/v1/", Address("h", 80, "/v1", False)),
        ("https://h/api", Address("h", 443, "/api/v1", True)),
    ],
)
def test_addresses(url, address):
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:port"])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="not a server's address"):
        Address.parse(url)
