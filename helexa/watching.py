"""Silence, by the time in which the watcher itself ran. Pure: `now` (seconds, monotonic) comes in.

A watcher that was stopped itself (Ctrl-Z, a frozen container, too little CPU) would otherwise find that everybody had been silent.
"""

from __future__ import annotations

LONGEST_SLEEP_S = 1.0  # a watcher wakes at least this often while it watches
_LONGEST_TURN_S = 2.0


def beat_every(patience: float) -> float:
    """Seconds between two beats of one that is ended after `patience` seconds of silence."""
    return min(LONGEST_SLEEP_S, patience / 4)


class WatchedTime:
    """Seconds that the watcher has been awake for; a longer gap between two looks than it ever sleeps is none of them."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._seconds = 0.0

    def at(self, now: float) -> float:
        gap, self._last = now - self._last, now
        if gap <= LONGEST_SLEEP_S + _LONGEST_TURN_S:
            self._seconds += gap
        return self._seconds


class Silence:
    """Who was last heard when, and who may be silent for how long. Times are watched seconds."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._heard)

    def expect(self, name: str, within: float, seconds: float) -> None:
        """A word of `name` is due within so many seconds from now on; replaces what was expected of it."""
        self._heard[name] = (seconds, within)

    def forget(self, name: str) -> None:
        self._heard.pop(name, None)

    def overdue(self, seconds: float) -> list[str]:
        """Whose word has not come in time; they are forgotten."""
        late = [name for name, (since, within) in self._heard.items() if seconds - since > within]
        for name in late:
            del self._heard[name]
        return late
