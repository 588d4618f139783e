"""When the next request is sent. Pure: what has happened so far in, how long to wait out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


class Pace(Protocol):
    def wait_s(self, elapsed: float, live: int, started: int) -> float | None:
        """Seconds until request number `started` is due, `elapsed` after the beginning with `live` requests open; 0: now; None:
        when one of those has ended."""
        ...

    def describe(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` clients, each of which sends its next request when its last one was answered."""

    concurrency: int

    def wait_s(self, elapsed: float, live: int, started: int) -> float | None:
        return 0.0 if live < self.concurrency else None

    def describe(self) -> dict[str, float]:
        return {"concurrency": self.concurrency}


class OpenLoop:
    """Requests come by themselves, `rate` a second on average, with exponential gaps (a Poisson process) that `seed` repeats. The
    first comes at once."""

    def __init__(self, rate: float, requests: int, seed: int) -> None:
        self.rate = rate
        draw = random.Random(seed)
        self.due = [0.0]
        while len(self.due) < requests:
            self.due.append(self.due[-1] + draw.expovariate(rate))

    def wait_s(self, elapsed: float, live: int, started: int) -> float | None:
        return max(0.0, self.due[started] - elapsed)

    def describe(self) -> dict[str, float]:
        return {"rate": self.rate}
