"""Whose step is next where several models share a device: one at a time, by weighted time. Pure.

The model that has had least device time for its weight goes first; one that was idle starts level with the others, so that nobody
saves up a claim.
"""

from __future__ import annotations

from collections.abc import Iterable


class DeviceShare:
    def __init__(self) -> None:
        self._had: dict[int, float] = {}  # milliseconds by instance, each over its weight
        self._busy: int | None = None

    @property
    def busy(self) -> int | None:
        """The instance whose step the device computes."""
        return self._busy

    def order(self, instances: Iterable[int]) -> list[int]:
        """Those that may be asked for a step now, in turn; none while a step runs."""
        if self._busy is not None:
            return []
        waiting = list(instances)
        level = min((self._had[instance] for instance in waiting if instance in self._had), default=0.0)
        for instance in waiting:
            self._had.setdefault(instance, level)
        return sorted(waiting, key=lambda instance: (self._had[instance], instance))

    def granted(self, instance: int) -> None:
        self._busy = instance

    def returned(self, instance: int, milliseconds: float, weight: float = 1.0) -> None:
        """The step has ended, or its worker is gone."""
        if self._busy == instance:
            self._busy = None
        self._had[instance] = self._had.get(instance, 0.0) + milliseconds / weight

    def idle(self, instance: int) -> None:
        """It has nothing to compute: when it has again, it starts level."""
        self._had.pop(instance, None)
