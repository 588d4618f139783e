"""Stop strings in streamed text.

Of all occurrences in the whole text the earliest-starting one ends it; of those that start at one place, the shortest: it is the
first to be complete. The answer is the same however the text is cut into pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helexa.errors import RequestError


class StopResult(NamedTuple):
    """`text` may be sent now; `stopped` is the stop string that ended the text, which is not part of it."""

    text: str
    stopped: str | None


class StopStrings:
    """Holds back the longest tail that can still become, or come before the end of, a stop string, and nothing more.

    A stop string that is complete is reported at once, unless another that starts earlier can still be completed by what follows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise RequestError("invalid_value", "a stop string is empty: it would end every reply at once; leave it out", "stop")
        self._stops = sorted(set(stops), key=len)
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str) -> StopResult:
        """After a stop, no text comes out and the stop is repeated."""
        if self._stopped is not None:
            return StopResult("", self._stopped)
        self._held += text
        start, stop = self._first_match()
        hold = self._hold_from()
        if stop is not None and start <= hold:
            return self._stop(start, stop)
        emit, self._held = self._held[:hold], self._held[hold:]
        return StopResult(emit, None)

    def flush(self) -> StopResult:
        """What is held back, when no more text comes."""
        if self._stopped is not None:
            return StopResult("", self._stopped)
        start, stop = self._first_match()
        if stop is not None:
            return self._stop(start, stop)
        emit, self._held = self._held, ""
        return StopResult(emit, None)

    def _stop(self, start: int, stop: str) -> StopResult:
        emit, self._held, self._stopped = self._held[:start], "", stop
        return StopResult(emit, stop)

    def _first_match(self) -> tuple[int, str | None]:
        """(start, stop) of the match that starts first; of several the shortest, since `_stops` rises in length."""
        first, found = len(self._held), None
        for stop in self._stops:
            at = self._held.find(stop, 0, first + len(stop))
            if 0 <= at < first:
                first, found = at, stop
        return first, found

    def _hold_from(self) -> int:
        """Where the longest tail starts that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return len(self._held) - longest
