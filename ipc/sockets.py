"""SEQPACKET sockets that carry whole messages: the scheduler's to its device workers, and the supervisor's to its children."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

import msgspec

from ipc.codec import MAX_WORKER_BYTES, BadMessage, encode

_BUFFER_BYTES = 1024 * 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Closed(ConnectionError):
    """The other end is gone: with SEQPACKET pairs that means its process ended, or closed on purpose."""


class Link:
    """One end of a SEQPACKET connection. Sends block until the peer's buffer has room."""

    def __init__(self, sock: socket.socket, decode: Callable[[bytes], object]) -> None:
        self._sock = sock
        self._decode = decode
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Raises Closed when the peer is gone, BadMessage when the message is larger than a peer will read."""
        data = encode(message)
        if len(data) > MAX_WORKER_BYTES:
            raise BadMessage(f"{type(message).__name__} of {len(data)} bytes; at most {MAX_WORKER_BYTES} fit")
        try:
            self._sock.send(data)
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
        try:
            data = self._sock.recv(MAX_WORKER_BYTES + 1)
        except ConnectionError as error:
            raise Closed(str(error)) from None
        if not data:
            raise Closed("closed")
        return self._decode(data)

    def peer_pid(self) -> int:
        """The pid of the process that connected, as the kernel knows it."""
        raw = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(raw)[0])

    def close(self) -> None:
        self._sock.close()


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
