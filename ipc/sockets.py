"""SEQPACKET sockets that carry whole messages: the scheduler's to its device workers, and the supervisor's to its children."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Iterator

import msgspec

from ipc.codec import MAX_TO_WORKER_BYTES, MAX_WORKER_BYTES, BadMessage, encode

_BUFFER_BYTES = 1024 * 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid

# A message of several datagrams: each begins with a byte that no msgpack value begins with, and whether another follows.
_MORE, _LAST = b"\xc1\x01", b"\xc1\x00"


class Closed(ConnectionError):
    """The other end is gone: with SEQPACKET pairs that means its process ended, or closed on purpose."""


class Link:
    """One end of a SEQPACKET connection. Sends block until the peer's buffer has room.

    A message over MAX_WORKER_BYTES goes in several datagrams, up to `most_bytes`; one thread sends such messages.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], object], most_bytes: int = MAX_WORKER_BYTES) -> None:
        self._sock = sock
        self._decode = decode
        self._most_bytes = most_bytes
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Raises Closed when the peer is gone, BadMessage when the message is larger than a peer will read."""
        data = encode(message)
        if len(data) > self._most_bytes:
            raise BadMessage(f"{type(message).__name__} of {len(data)} bytes; at most {self._most_bytes} fit")
        try:
            for datagram in _datagrams(data):
                self._sock.send(datagram)
        except (BrokenPipeError, ConnectionError) as error:
            raise Closed(str(error)) from None

    def offer(self, message: msgspec.Struct) -> None:
        """Sends if the peer's buffer has room, else not at all. Raises Closed when the peer is gone."""
        try:
            self._sock.send(encode(message), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise Closed(str(error)) from None

    def receive(self) -> object:
        """The next message; blocks for it. Raises Closed at the end, BadMessage for bytes that are none."""
        data = self._datagram()
        return self._decode(data if data[:1] != _MORE[:1] else self._joined(data))

    def has_message(self) -> bool:
        """Whether `receive` returns, or raises, at once."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return bool(poller.poll(0))

    def is_left(self) -> bool:
        """Whether the peer has closed its end, whatever of its words is still unread."""
        poller = select.poll()
        poller.register(self._sock, 0)
        return bool(poller.poll(0))

    def _datagram(self) -> bytes:
        try:
            data = self._sock.recv(MAX_WORKER_BYTES + 1)
        except ConnectionError as error:
            raise Closed(str(error)) from None
        if not data:
            raise Closed("closed")
        return data

    def _joined(self, data: bytes) -> bytes:
        """The message whose first datagram this is; the others are on their way."""
        parts, size = [data[2:]], len(data) - 2
        while data[:2] == _MORE:
            data = self._datagram()
            parts.append(data[2:])
            size += len(data) - 2
            if size > MAX_TO_WORKER_BYTES:
                raise BadMessage(f"a message of {size} bytes and more; at most {MAX_TO_WORKER_BYTES} are read")
        if data[:2] != _LAST:
            raise BadMessage("a message whose last part is missing")
        return b"".join(parts)

    def peer_pid(self) -> int:
        """The pid of the process that connected, as the kernel knows it."""
        raw = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(raw)[0])

    def close(self) -> None:
        self._sock.close()


def _datagrams(data: bytes) -> Iterator[bytes]:
    if len(data) <= MAX_WORKER_BYTES:
        yield data
        return
    room = MAX_WORKER_BYTES - len(_MORE)
    for start in range(0, len(data), room):
        yield (_MORE if start + room < len(data) else _LAST) + data[start : start + room]


def pair(decode: Callable[[bytes], object]) -> tuple[Link, socket.socket]:
    """A connected pair: this process's end, and the child's end to pass by descriptor."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours, decode), theirs


def from_fd(fd: int, decode: Callable[[bytes], object]) -> Link:
    """The child's end of a pair, from the descriptor it inherited."""
    os.set_inheritable(fd, False)
    return Link(socket.socket(fileno=fd), decode)


def listen(path: str) -> socket.socket:
    """A listening socket at `path`, replacing what a dead process left there; the folder decides who may connect."""
    if os.path.exists(path):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(path)
    sock.listen(16)
    return sock


def connect(path: str, decode: Callable[[bytes], object]) -> Link:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise Closed(f"{path}: {error.strerror}") from None
    return Link(sock, decode)
