"""Who is next for a seat: interactive before background, then the key that has had least for its weight, then by arrival. Pure.

Start-time fair queueing (Goyal, Vin and Cheng 1996): a key's virtual time grows by tokens / weight; a key that was idle starts at
the time of the least served waiting one, so nobody saves up a claim by staying away.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping

from helexa.scheduler.sequence import Sequence, State

Lane = tuple[int, str]  # (priority class, key)


class FairQueue:
    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._lanes: dict[Lane, deque[Sequence]] = {}
        self._virtual: dict[str, float] = {}
        self._heap: list[tuple[int, float, int, str]] = []  # (class, virtual time then, order, key); may lag behind
        self._order = itertools.count()
        self._now = 0.0  # virtual time of the last key that was served
        self._size = 0
        self.tokens = 0  # tokens to compute of all that wait
        self._by_key: dict[str, int] = {}

    def set_weight(self, key: str, weight: float) -> None:
        """For what is computed from now on; a key that has none weighs 1."""
        self._weights[key] = weight

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        for lane in self._lanes.values():
            yield from (sequence for sequence in lane if sequence.state is State.WAITING)

    def waiting_of(self, key: str) -> int:
        return self._by_key.get(key, 0)

    def push(self, sequence: Sequence, front: bool = False) -> None:
        """At the end of its lane, or at its head: what ran before goes first."""
        lane = (sequence.request.priority_class, sequence.request.key)
        waiting = self._lanes.get(lane)
        if waiting is None:
            waiting = self._lanes[lane] = deque()
            self._virtual[lane[1]] = max(self._virtual.get(lane[1], 0.0), self._now)
            heapq.heappush(self._heap, (lane[0], self._virtual[lane[1]], next(self._order), lane[1]))
        if front:
            waiting.appendleft(sequence)
        else:
            waiting.append(sequence)
        self._count(sequence, 1)

    def leave(self, sequence: Sequence) -> None:
        """A waiting sequence ended; its place is skipped when it is reached. Its state must say so already."""
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, step: int) -> None:
        sequence.queued = step > 0
        self._size += step
        self.tokens += step * sequence.num_tokens
        key = sequence.request.key
        self._by_key[key] = self._by_key.get(key, 0) + step
        if not self._by_key[key]:
            del self._by_key[key]

    def peek(self) -> Sequence | None:
        """Who is next."""
        while self._heap:
            priority, virtual, order, key = self._heap[0]
            lane = self._lanes[priority, key]
            while lane and lane[0].state is not State.WAITING:
                lane.popleft()
            if not lane:
                heapq.heappop(self._heap)
                del self._lanes[priority, key]
            elif virtual < self._virtual[key]:
                heapq.heapreplace(self._heap, (priority, self._virtual[key], order, key))
            else:
                return lane[0]
        return None

    def pop(self) -> Sequence:
        """Takes the one that `peek` showed."""
        sequence = self.peek()
        assert sequence is not None, "nobody waits"
        self._lanes[sequence.request.priority_class, sequence.request.key].popleft()
        self._now = max(self._now, self._virtual[sequence.request.key])
        self._count(sequence, -1)
        return sequence

    def charge(self, key: str, tokens: int) -> None:
        """A key was given the computation of `tokens`."""
        self._virtual[key] = self._virtual.get(key, self._now) + tokens / self._weights.get(key, 1.0)

    def forget_idle(self, busy: set[str]) -> None:
        """Drops the times of keys that neither wait nor run and are not ahead of the others."""
        idle = [key for key, time in self._virtual.items() if key not in busy and key not in self._by_key and time <= self._now]
        for key in idle:
            del self._virtual[key]
