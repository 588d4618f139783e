"""When a model was asked for, used and loaded, and whether it is on its way out of memory. Pure: seconds, monotonic, come in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Presence:
    """`wanted_at`: since when somebody asks for a model that is not there; `asked_at`: when that was said last."""

    wanted_at: float | None = None
    asked_at: float | None = None
    used_at: float = 0.0
    ready_at: float = 0.0
    has_served: bool = False  # since it was ready
    failed_at: float | None = None  # when it could not be loaded, until it may be tried again
    on_request: bool = False  # whoever asks waits until it is there
    leaving: bool = False  # what is new waits until the model comes back; once nothing runs, it is unloaded
    dismissed: bool = False  # by an operator: it leaves, whether or not others want its room
    unloading_bytes: int = 0  # what it had; its worker is being ended

    @property
    def wanted(self) -> bool:
        return self.wanted_at is not None

    def want(self, now: float) -> None:
        self.wanted_at = now if self.wanted_at is None else self.wanted_at
        self.asked_at = self.used_at = now
        self.on_request = True

    def forget_wish(self) -> None:
        self.wanted_at = self.asked_at = None

    def leave(self, dismissed: bool = False) -> None:
        self.leaving = True
        self.dismissed = self.dismissed or dismissed

    def is_ready(self, now: float) -> None:
        self.ready_at = self.used_at = now
        self.has_served = False
        self.forget_wish()

    def is_used(self, now: float) -> None:
        self.used_at, self.has_served = now, True
