"""Requests that an engine keeps without a scheduler to give them to: while its model is paused, or comes back. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ipc.messages import Abort, Credit, FinishAck, Generate

RequestMessage = Generate | Abort | Credit | FinishAck


@dataclass(frozen=True)
class _Held:
    client: bytes
    message: RequestMessage
    since: float  # seconds


class HeldRequests:
    """In order of arrival, each Generate with the later words about it."""

    def __init__(self) -> None:
        self._held: list[_Held] = []

    def __len__(self) -> int:
        """Requests, not messages."""
        return sum(isinstance(item.message, Generate) for item in self._held)

    def has(self, client: bytes, req_id: str) -> bool:
        return any(item.client == client and item.message.req_id == req_id for item in self._held)

    def add(self, client: bytes, message: RequestMessage, now: float) -> None:
        """A cancel of a request's last choice, or a repeated Generate, is left to whom all of it is given in the end."""
        self._held.append(_Held(client, message, now))

    def take(self) -> list[tuple[bytes, RequestMessage]]:
        held, self._held = self._held, []
        return [(item.client, item.message) for item in held]

    def take_new(self, before: float | None = None) -> list[tuple[bytes, str]]:
        """(client, req_id) of requests that never ran, all of them or those that came by `before`; they are forgotten."""
        gone = {
            (item.client, item.message.req_id)
            for item in self._held
            if isinstance(item.message, Generate) and not item.message.resumed and (before is None or item.since <= before)
        }
        self._forget(gone)
        return sorted(gone)

    def drop_client(self, client: bytes) -> None:
        self._held = [item for item in self._held if item.client != client]

    def num_of(self, key: str) -> int:
        """Requests of a key."""
        return sum(isinstance(item.message, Generate) and item.message.key == key for item in self._held)

    def req_ids(self) -> list[str]:
        return [item.message.req_id for item in self._held if isinstance(item.message, Generate)]

    def find(self, matches: str) -> list[tuple[bytes, str]]:
        """(client, req_id) of the requests of that id."""
        return sorted({(item.client, item.message.req_id) for item in self._held if item.message.req_id == matches})

    def forget(self, client: bytes, req_id: str) -> None:
        self._forget({(client, req_id)})

    def oldest_new(self) -> float | None:
        return min(
            (item.since for item in self._held if isinstance(item.message, Generate) and not item.message.resumed), default=None
        )

    def _forget(self, gone: set[tuple[bytes, str]]) -> None:
        self._held = [item for item in self._held if (item.client, item.message.req_id) not in gone]
