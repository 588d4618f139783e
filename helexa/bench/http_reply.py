"""An HTTP/1.1 reply as its bytes come: status, headers, body, and the events of a text/event-stream. Pure, and cheap: the load
generator shares the machine with what it measures."""

from __future__ import annotations


class BadReply(ValueError):
    """Not an HTTP/1.1 reply."""


class HttpReply:
    """Feed it what the connection gives. `body` holds the body of anything but an event stream."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self._raw = bytearray()
        self._left: int | None = None  # bytes of the body, or of the chunk and its line end, still to come; None: not known
        self._chunked = False
        self._streams = False
        self._line = bytearray()  # a line of the event stream that has not ended yet
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The `data` of every event that has ended with these bytes. Raises BadReply."""
        self._raw += data
        if not self.status and not self._read_head():
            return []
        return self._events(self._read_chunks() if self._chunked else self._read_plain())

    def close(self) -> None:
        """The connection has ended. A body without a length has ended with it; any other is cut: `complete` stays False."""
        if self.status and not self._chunked and self._left is None:
            self.complete = True

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        words = first.split(" ", 2)
        if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise BadReply(f"not an HTTP reply: {first[:60]!r}")
        self.status = int(words[1])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self._streams = self.headers.get("content-type", "").startswith("text/event-stream")
        if not self._chunked and "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
        return True

    def _read_plain(self) -> bytes:
        taken = bytes(self._raw if self._left is None else self._raw[: self._left])
        self._raw.clear()
        if self._left is not None:
            self._left -= len(taken)
            self.complete = self._left == 0
        return taken

    def _read_chunks(self) -> bytes:
        taken = bytearray()
        while not self.complete:
            if self._left is None:
                end = self._raw.find(b"\r\n")
                if end < 0:
                    break
                try:
                    size = int(self._raw[:end].split(b";")[0], 16)
                except ValueError:
                    raise BadReply(f"not a chunk's size: {bytes(self._raw[:end])[:60]!r}") from None
                del self._raw[: end + 2]
                self.complete = size == 0
                self._left = size + 2
            else:
                part = self._raw[: self._left]
                del self._raw[: len(part)]
                taken += part[: max(0, self._left - 2)]
                self._left -= len(part)
                if self._left:
                    break
                self._left = None
        return bytes(taken)

    def _events(self, data: bytes) -> list[bytes]:
        if not self._streams:
            self.body += data
            return []
        events = []
        self._line += data
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        for line in lines:
            text = bytes(line).rstrip(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].lstrip(b" "))
            elif not text and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
