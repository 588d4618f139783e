"""When requests are sent."""

from __future__ import annotations

from itertools import pairwise

import pytest

from helexa.bench.pacing import ClosedLoop, OpenLoop


def test_a_closed_loop_keeps_so_many_open():
    pace = ClosedLoop(3)
    assert [pace.wait_s(1.0, live, 9) for live in range(5)] == [0.0, 0.0, 0.0, None, None]


def test_an_open_loop_waits_for_the_clock_alone():
    """However many are open; what is overdue is due now."""
    pace = OpenLoop(2.0, 3, seed=1)
    due = pace.due[1]
    assert pace.wait_s(0.0, 0, 0) == 0.0
    assert pace.wait_s(due - 0.25, 100, 1) == pytest.approx(0.25)
    assert pace.wait_s(due + 9, 0, 1) == 0.0


def test_arrivals_are_random_and_repeatable():
    """Exponential gaps: mean and standard deviation are both 1 / rate."""
    due = OpenLoop(10.0, 20_001, seed=7).due
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.03) and deviation == pytest.approx(0.1, rel=0.03)
    assert due == OpenLoop(10.0, 20_001, seed=7).due != OpenLoop(10.0, 20_001, seed=8).due
