"""Requests by (client, id), and the times at which one of their sequences must be looked at again. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from helexa.errors import RequestError
from helexa.scheduler.sequence import Sequence, State


@dataclass(frozen=True)
class GivenUp:
    """A request that is refused after it was taken: it waited too long for a seat, or turned out impossible."""

    client: bytes
    req_id: str
    error: RequestError


class RequestTable:
    """A request is known from its arrival until the ends of all its choices are acknowledged, or given up."""

    def __init__(self) -> None:
        self._requests: dict[tuple[bytes, str], list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, client: bytes, req_id: str, sequences: list[Sequence]) -> None:
        self._requests[client, req_id] = sequences

    def choices(self, client: bytes, req_id: str) -> list[Sequence]:
        """The choices that are still known; empty where there is no such request of this client."""
        return self._requests.get((client, req_id), [])

    def find(self, client: bytes, req_id: str, choice: int) -> Sequence | None:
        return next((item for item in self.choices(client, req_id) if item.choice == choice), None)

    def of_client(self, client: bytes) -> list[Sequence]:
        return [sequence for (owner, _), group in self._requests.items() if owner == client for sequence in group]

    def named(self, req_id: str) -> list[Sequence]:
        """The choices of every client's request of that id."""
        return [sequence for (_, name), group in self._requests.items() if name == req_id for sequence in group]

    def num_open_of(self, key: str) -> int:
        """Requests of a key with a choice that has not ended."""
        groups = (group for group in self._requests.values() if group[0].request.key == key)
        return sum(any(sequence.state is not State.FINISHED for sequence in group) for group in groups)

    def forget(self, sequence: Sequence) -> None:
        key = (sequence.request.client, sequence.request.req_id)
        group = self._requests.get(key)
        if group is not None and sequence in group:
            group.remove(sequence)
            if not group:
                del self._requests[key]


class Reminders:
    """A heap of (time in seconds, sequence). A reminder may be out of date when it comes: who gets it looks for himself."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._order = itertools.count()

    def add(self, when: float, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (when, next(self._order), sequence))

    def due(self, now: float) -> Iterator[Sequence]:
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None
