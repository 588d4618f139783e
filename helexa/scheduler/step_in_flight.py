"""The step that the worker computes now: what was asked, of whom, and which messages answer it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.scheduler.prices import Shape
from helexa.scheduler.sequence import Sequence, State
from ipc.messages import Plan, Pooled, PromptLogprobs, Result, RowError


@dataclass
class StepInFlight:
    plan: Plan
    parts: list[tuple[Sequence, int]]  # (sequence, tokens of this step), as in the plan's columns
    shape: Shape

    def is_answered_by(self, message: Result | RowError | PromptLogprobs | Pooled) -> bool:
        """False for another incarnation's or step's."""
        return message.incarnation == self.plan.incarnation and message.step == self.plan.step

    def sequence_at(self, seat: int) -> Sequence | None:
        return next((sequence for sequence, _ in self.parts if sequence.seat == seat), None)

    def ended(self) -> list[Sequence]:
        """Sequences that have ended while it was computed."""
        return [sequence for sequence, _ in self.parts if sequence.state is State.FINISHED]
