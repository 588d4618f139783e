"""Children that start together and end together: a model's device workers, one a rank, or one child alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from helexa.children import Role, Running
from helexa.restarts import Restarts


@dataclass(frozen=True)
class Death:
    """Of a whole group: who died first, and why, as far as that child or we know, or ""."""

    who: str
    words: str


@dataclass
class ChildGroup:
    """`roles` by rank. The death of one is the death of all, and counts once: what the others hold is of no use without it.
    `start_at`: when it is started again (seconds, monotonic)."""

    name: str
    roles: list[Role]
    restarts: Restarts = field(default_factory=Restarts)
    start_at: float | None = None
    _death: Death | None = None

    def living(self) -> list[tuple[Role, Running]]:
        """Those that run, or have not been collected."""
        return [(role, role.running) for role in self.roles if role.running is not None]

    def start(self, more_arguments: Mapping[int, list[str]]) -> None:
        """`more_arguments` by rank."""
        self.start_at = None
        for rank, role in enumerate(self.roles):
            role.start(more_arguments.get(rank, []))

    def tell(self, message: msgspec.Struct) -> None:
        """Whoever is gone is told nothing; whoever comes afterwards is told all."""
        for role in self.roles:
            role.tell(message)

    def end(self, reason: str) -> bool:
        """Kills those that live; False when that was done already."""
        living = [running for _, running in self.living() if not running.ended_for]
        for running in living:
            running.end(reason)
        return bool(living)

    def reap(self, role: Role) -> Death | None:
        """Collects a dead child and kills the others. The death of the group, once none of it is left."""
        words = role.reap()
        self._death = self._death or Death(role.name, words)
        self.end(f"the {self._death.who} is gone")
        if self.living():
            return None
        death, self._death = self._death, None
        return death


def alone(role: Role) -> ChildGroup:
    return ChildGroup(role.name, [role])
