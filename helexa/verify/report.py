"""The table that `helexa verify` prints, and the same as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helexa.verify.session import Outcome

LAYOUT = "{:<26} {:>7} {:>9} {:>10}  {}"
HEAD = LAYOUT.format("setting", "streams", "compared", "mismatches", "witness")


def line(outcome: Outcome) -> str:
    compared, mismatches = (
        ("-", "-")
        if outcome.verdict == "not served" or (outcome.baseline and not outcome.comparison.mismatches)
        else (f"{outcome.comparison.tokens:,}", f"{outcome.comparison.mismatches:,}")
    )
    notes = [outcome.witness]
    if outcome.baseline:
        notes.append("all others are compared with this")
    if outcome.verdict == "no witness":
        notes.insert(0, "NO WITNESS:")
        notes[:2] = [" ".join(notes[:2])]
    if outcome.comparison.first:
        notes.append(outcome.comparison.first)
    return LAYOUT.format(outcome.name, outcome.streams, compared, mismatches, "; ".join(notes))


def totals(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """(mismatches, comparisons)."""
    counted = [outcome.comparison for outcome in outcomes if outcome.verdict != "not served"]
    return sum(item.mismatches for item in counted), sum(item.tokens for item in counted)


def unwitnessed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.verdict == "no witness" for outcome in outcomes)


def passed(outcomes: Sequence[Outcome], self_test: bool) -> bool:
    """Nothing differs, and something was shown by every setting; a self-test passes when differences were found."""
    mismatches, comparisons = totals(outcomes)
    if unwitnessed(outcomes) or not comparisons:
        return False
    return bool(mismatches) == self_test


def summary(outcomes: Sequence[Outcome]) -> str:
    mismatches, comparisons = totals(outcomes)
    shown = sum(outcome.verdict in ("same", "different") for outcome in outcomes)
    text = f"{mismatches:,} mismatches in {comparisons:,} comparisons over {shown} settings"
    missing, absent = unwitnessed(outcomes), sum(outcome.verdict == "not served" for outcome in outcomes)
    text += f"; {missing} without a witness" if missing else ""
    return text + (f"; {absent} not served" if absent else "")


def document(outcomes: Sequence[Outcome], about: dict[str, Any], self_test: bool) -> dict[str, Any]:
    mismatches, comparisons = totals(outcomes)
    return {
        **about,
        "self_test": self_test,
        "passed": passed(outcomes, self_test),
        "mismatches": mismatches,
        "comparisons": comparisons,
        "settings": [
            {
                "name": outcome.name,
                "streams": outcome.streams,
                "compared": outcome.comparison.tokens,
                "mismatches": outcome.comparison.mismatches,
                "first_mismatch": outcome.comparison.first,
                "witness": outcome.witness,
                "verdict": outcome.verdict,
            }
            for outcome in outcomes
        ],
    }
