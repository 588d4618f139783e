"""The load generator's HTTP: replies cut into any pieces."""

from __future__ import annotations

import pytest

from helexa.bench.http_reply import BadReply, HttpReply

EVENTS = b': ok\n\ndata: {"a": 1}\n\ndata: x\r\ndata:y\r\n\r\nevent: z\ndata: [DONE]\n\n'
EXPECTED = [b'{"a": 1}', b"x\ny", b"[DONE]"]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def chunked(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def feed(data: bytes, size: int) -> tuple[HttpReply, list[bytes]]:
    reply = HttpReply()
    events = [event for at in range(0, len(data), size) for event in reply.feed(data[at : at + size])]
    return reply, events


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("chunk", [1, 5, 10_000])
def test_a_chunked_stream_in_any_pieces(size, chunk):
    reply, events = feed(STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(EVENTS, chunk), size)
    assert events == EXPECTED and reply.complete and (reply.status, bytes(reply.body)) == (200, b"")


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_stream_that_ends_with_its_connection(size):
    """HTTP/1.0 servers send no lengths."""
    reply, events = feed(STREAM_HEAD + b"\r\n" + EVENTS, size)
    assert events == EXPECTED and not reply.complete
    reply.close()
    assert reply.complete


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_document_with_a_length(size):
    reply, events = feed(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nX-A: b: c\r\n\r\nabcd", size)
    assert reply.complete and events == []
    assert (reply.status, bytes(reply.body), reply.headers["x-a"]) == (503, b"abcd", "b: c")


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_reply_that_is_cut_is_not_complete(head):
    body = b"5\r\nabcde\r\n" if b"chunked" in head else b"abcde"
    reply, _ = feed(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body, 10_000)
    reply.close()
    assert not reply.complete


def test_no_reply_at_all_is_not_complete():
    reply = HttpReply()
    reply.close()
    assert not reply.complete


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nq\r\n"]
)
def test_what_is_no_http_is_an_error(data):
    with pytest.raises(BadReply):
        feed(data, 10_000)
