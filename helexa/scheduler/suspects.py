"""Which sequence kills the workers that compute it. Pure.

A sequence in whose step a worker died is suspected until it has been computed past that step. One that was suspected before when
the next worker died is computed alone, so that the death after that has one author: it ends, and its neighbours go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from helexa.scheduler.sequence import Sequence

DEATHS = 2  # workers that a sequence may cost


def note_death(parts: Iterable[tuple[Sequence, int]]) -> Sequence | None:
    """A worker died in a step of these (sequence, new tokens); returns the one to end, if it is known."""
    suspected = list(parts)
    for sequence, count in suspected:
        sequence.worker_deaths += 1
        sequence.suspect_until = max(sequence.suspect_until, sequence.num_computed_tokens + count)
    if len(suspected) == 1 and suspected[0][0].worker_deaths >= DEATHS:
        return suspected[0][0]
    return None


def note_computed(sequence: Sequence) -> None:
    """The sequence got as far as `num_computed_tokens` without harm."""
    if sequence.worker_deaths and sequence.num_computed_tokens >= sequence.suspect_until:
        sequence.worker_deaths = sequence.suspect_until = 0


def runs_alone(sequence: Sequence) -> bool:
    return sequence.worker_deaths >= DEATHS
