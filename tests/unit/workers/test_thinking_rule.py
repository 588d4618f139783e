"""The bound on reasoning, and how the rules give way to each other."""

from __future__ import annotations

import numpy as np
import pytest

from ipc.messages import SamplingParams
from workers import logits_rules

OPEN, CLOSE, END = [1], [8, 9], 2


def params(budget: int, inside: bool = False, **changes: object) -> SamplingParams:
    values = {
        "max_tokens": 9,
        "thinking_budget": budget,
        "thinking_open": OPEN,
        "thinking_close": CLOSE,
        "thinking_inside": inside,
    }
    return SamplingParams(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "inside", "output", "closing"),
    [
        (2, False, [], None),
        (2, False, [5, 5, 5], None),
        (2, False, [1, 5], None),
        (2, False, [1, 5, 5], 8),
        (2, False, [1, 5, 5, 8], 9),
        (2, False, [1, 5, 5, 8, 9], None),
        (2, False, [1, 8, 9, 5, 5, 5], None),
        (2, False, [1, 5, 8], 9),
        (0, True, [], 8),
        (0, True, [8], 9),
        (0, True, [8, 9, 5], None),
        (3, True, [5, 5], None),
        (-1, True, [5, 5, 5, 5], None),
    ],
)
def test_when_reasoning_is_closed(budget, inside, output, closing):
    """From the budget on, token by token; not before it starts, and not again."""
    assert logits_rules.closing_token(params(budget, inside), output) == closing


def test_a_closing_token_is_the_only_one():
    row = np.zeros(12, np.float32)
    logits_rules.apply(row, params(0, True), [3], [], [END])
    assert np.flatnonzero(row > -np.inf).tolist() == [8]


def test_a_grammar_wins_over_the_budget():
    """In the middle of a character the closing token is not allowed yet: the grammar's word stands."""
    row, allowed = np.zeros(12, np.float32), np.zeros(12, bool)
    allowed[5] = True
    logits_rules.apply(row, params(0, True, grammar="g"), [3], [], [END], allowed)
    assert np.flatnonzero(row > -np.inf).tolist() == [5]


def test_a_finished_grammar_wins_over_min_tokens():
    """Where only the end is left, it comes; else the end waits."""
    few = SamplingParams(max_tokens=9, min_tokens=5, grammar="g")
    for also, left in ((4, [4]), (END, [END])):
        row, allowed = np.zeros(12, np.float32), np.zeros(12, bool)
        allowed[[END, also]] = True
        logits_rules.apply(row, few, [3], [], [END], allowed)
        assert np.flatnonzero(row > -np.inf).tolist() == left
