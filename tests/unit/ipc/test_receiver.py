"""What a client holds of a choice's output."""

from __future__ import annotations

import pytest

from ipc.receiver import Gap, HeldOutput


def test_overlap_is_dropped_and_gaps_are_seen() -> None:
    """Ids below what is held are dropped, so repeated deltas do no harm; ids beyond it are not guessed at."""
    held = HeldOutput(window=8)
    assert held.merge(0, [1, 2]) == 0
    assert held.merge(0, [1, 2]) == 2
    assert held.merge(1, [2, 3]) == 1
    assert held.ids == [1, 2, 3]
    with pytest.raises(Gap):
        held.merge(4, [5])
    assert held.ids == [1, 2, 3]


def test_a_stopped_choice_takes_nothing_more() -> None:
    """After a stop string the output is what it was cut to, however far the engine ran."""
    held = HeldOutput(window=8)
    held.merge(0, [1, 2, 3])
    held.stop(2)
    assert held.merge(3, [4]) == 1
    assert held.merge(9, [4]) == 1
    assert held.ids == [1, 2]
    assert held.consumed(2) is None


def test_credit_is_extended_by_half_windows() -> None:
    """A message goes out only once half of the window is used, and never asks for less than before."""
    held = HeldOutput(window=8)
    assert [held.consumed(count) for count in range(9)] == [None, None, None, None, 12, None, None, None, 16]
    narrow = HeldOutput(window=1)
    assert [narrow.consumed(count) for count in (0, 1, 2)] == [None, 2, 3]
