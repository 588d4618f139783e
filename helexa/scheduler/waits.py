"""Which waits are worth a line in the log. Pure: `now` in seconds comes in."""

from __future__ import annotations

from collections.abc import Iterable

from helexa.scheduler.sequence import Sequence

EVERY_S = 2.0
MOST_LINES = 16  # a report; the longest waits


class WaitReports:
    def __init__(self) -> None:
        self._last = float("-inf")

    def due(self, waiting: Iterable[Sequence], now: float) -> list[tuple[Sequence, float]]:
        """(first choice of a request, seconds since it came) of those that have waited for more than EVERY_S, every EVERY_S."""
        if now - self._last < EVERY_S:
            return []
        late = {
            (sequence.request.client, sequence.request.req_id): sequence
            for sequence in waiting
            if now - sequence.request.arrived > EVERY_S
        }
        if not late:
            return []
        self._last = now
        longest = sorted(late.values(), key=lambda sequence: sequence.request.arrived)[:MOST_LINES]
        return [(sequence, now - sequence.request.arrived) for sequence in longest]
