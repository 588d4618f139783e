"""How often a child may die before its parent gives up. Pure: `now` in seconds comes in."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
DELAYS_S = (0.0, 0.25, 1.0, 2.0, 4.0)  # before the first, second, ... restart within the window


class Restarts:
    """Backs off within a window, then gives up."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._deaths)

    def died(self, now: float) -> float | None:
        """Seconds to wait before the restart, or None: too many deaths within the window."""
        self._deaths.append(now)
        while self._deaths[0] < now - WINDOW_S:
            self._deaths.popleft()
        count = len(self._deaths)
        return DELAYS_S[count - 1] if count <= len(DELAYS_S) else None
