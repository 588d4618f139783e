"""The control socket: connections of operators, lines in, lines out. What a line means is control.py's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

MAX_LINE_BYTES = 64 * 1024
MOST_CONNECTIONS = 32


class OperatorSocket:
    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._connections: dict[int, tuple[socket.socket, bytearray]] = {}

    def fileno(self) -> int:
        return self._listener.fileno()

    def __contains__(self, fd: int) -> bool:
        return fd in self._connections

    def accept(self) -> int | None:
        """The descriptor of a new connection; None where there are too many."""
        connection, _ = self._listener.accept()
        if len(self._connections) >= MOST_CONNECTIONS:
            connection.close()
            return None
        connection.setblocking(False)
        self._connections[connection.fileno()] = (connection, bytearray())
        return connection.fileno()

    def read(self, fd: int) -> Iterator[bytes]:
        """The whole lines that came. Raises ConnectionError where there is nothing more to come: call `close` then."""
        connection, pending = self._connections[fd]
        try:
            data = connection.recv(MAX_LINE_BYTES)
        except OSError as error:
            raise ConnectionError(str(error)) from None
        pending += data
        while b"\n" in pending:
            line, _, rest = bytes(pending).partition(b"\n")
            pending[:] = rest
            yield line
        if not data or len(pending) > MAX_LINE_BYTES:
            raise ConnectionError("closed, or a line without end")

    def answer(self, fd: int, line: bytes) -> None:
        """Raises ConnectionError for a peer that is gone or reads none of its answers: one fits a fresh connection's buffer."""
        connection, _ = self._connections[fd]
        try:
            if connection.send(line) != len(line):
                raise ConnectionError("the peer does not read")
        except OSError as error:
            raise ConnectionError(str(error)) from None

    def close(self, fd: int) -> None:
        connection, _ = self._connections.pop(fd)
        connection.close()
