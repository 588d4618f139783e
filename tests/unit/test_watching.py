"""Silence is counted in the time in which the watcher itself ran."""

from __future__ import annotations

from helexa.watching import Silence, WatchedTime


def test_the_watchers_own_absence_is_nobodys_silence():
    """An hour between two looks is no time; the seconds before and after it count."""
    time = WatchedTime(100.0)
    assert [time.at(now) for now in (101.0, 102.0, 3702.0, 3702.5, 3703.5)] == [1.0, 2.0, 2.0, 2.5, 3.5]


def test_who_is_overdue_is_said_once():
    """A word puts the next one off; one who is forgotten is never overdue."""
    silence = Silence()
    silence.expect("a", 5.0, 0.0)
    silence.expect("b", 5.0, 0.0)
    silence.expect("c", 60.0, 0.0)
    silence.expect("b", 5.0, 4.0)
    assert silence.overdue(5.0) == [] and len(silence) == 3
    assert silence.overdue(5.1) == ["a"] and silence.overdue(8.0) == []
    silence.forget("b")
    silence.forget("b")
    assert silence.overdue(59.0) == [] and silence.overdue(61.0) == ["c"]
