"""A session against services made of lists: what it compares, when it asks again, and what it never calls a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from helexa.client import Client
from helexa.verify import report
from helexa.verify.asks import Ask
from helexa.verify.comparison import Stream
from helexa.verify.driving import Observed
from helexa.verify.session import ATTEMPTS, Outcome, Session
from helexa.verify.settings import Programme, Seen, Service, Setting, Witness

ASKS = [Ask((1, 2), 2, 0, {"temperature": 0.0}, 100), Ask((3,), 2, 1, {"temperature": 0.0}, 100)]
RIGHT = {0: [(5, 50), (6, 60)], 1: [(7, 70), (8, 80)]}
WRONG = {0: [(5, 50), (6, 61)], 1: [(7, 70), (8, 80)]}


class Fake:
    """A running service whose only counter rises by one a look."""

    ops = "ops"
    ranks = 1
    client = cast(Client, None)

    def __init__(self) -> None:
        self.looks = 0

    def counters(self) -> dict[str, int]:
        self.looks += 1
        return {"looks": self.looks}


def drive(replies: dict[int, Any], driven_asks: list[int] | None = None) -> Callable[..., Observed]:
    def driven(client: Client, asks: dict[int, Ask]) -> Observed:
        if driven_asks is not None:
            driven_asks.append(len(asks))
        return Observed([Stream(number, replies[number]) for number in asks])

    return driven


def holds(seen: Seen) -> Witness:
    return Witness(seen.rose("looks") == 1, "looked")


def never(seen: Seen) -> Witness:
    return Witness(False, "nothing seen")


def absent(seen: Seen) -> Witness:
    return Witness(False, "not possible", not_served=True)


def run(*settings: Setting) -> list[Outcome]:
    service = Service({}, (Setting("alone", (0, 1), drive(RIGHT), holds), *settings))
    return list(Session(Programme(ASKS, (service,))).service(service, Fake()))


def test_the_same_replies_pass():
    outcomes = run(Setting("both", (0, 1), drive(RIGHT), holds))
    assert [outcome.verdict for outcome in outcomes] == ["same", "same"]
    assert report.totals(outcomes) == (0, 4)
    assert report.passed(outcomes, self_test=False) and not report.passed(outcomes, self_test=True)
    assert report.summary(outcomes) == "0 mismatches in 4 comparisons over 2 settings"


def test_one_other_digest_fails_and_a_self_test_wants_it():
    outcomes = run(Setting("both", (0, 1), drive(WRONG), holds))
    assert outcomes[1].verdict == "different" and report.totals(outcomes) == (1, 4)
    assert not report.passed(outcomes, self_test=False) and report.passed(outcomes, self_test=True)
    assert "same id 6, other logits" in report.line(outcomes[1])


@pytest.mark.parametrize("replies", [RIGHT, WRONG])
def test_a_setting_without_its_witness_fails_after_some_attempts(replies):
    """What is seen together is up to the clock, so it is tried again; the mismatches of all attempts are kept."""
    driven: list[int] = []
    outcomes = run(Setting("both", (0, 1), drive(replies, driven), never))
    assert driven == [2] * ATTEMPTS and outcomes[1].comparison.tokens == 4 * ATTEMPTS
    assert outcomes[1].verdict == ("no witness" if replies is RIGHT else "different")
    assert not report.passed(outcomes, self_test=False)
    if replies is RIGHT:
        assert not report.passed(outcomes, self_test=True)
        assert "NO WITNESS: nothing seen" in report.line(outcomes[1])
        assert "1 without a witness" in report.summary(outcomes)


def test_what_is_not_served_is_said_and_not_counted():
    outcomes = run(Setting("both", (0, 1), drive(RIGHT), holds), Setting("chunks", (0, 1), drive(RIGHT), absent))
    assert outcomes[2].verdict == "not served" and report.totals(outcomes) == (0, 4)
    assert report.summary(outcomes) == "0 mismatches in 4 comparisons over 2 settings; 1 not served"
    assert report.passed(outcomes, self_test=False)


def test_nothing_compared_is_no_pass():
    assert not report.passed(run(), self_test=False)


def test_a_baseline_that_is_cut_short_fails():
    """Else it would agree with others that are cut short too."""
    short = Setting("alone", (0, 1), drive({0: [(5, 50)], 1: [(7, None), (8, 80)]}), holds)
    service = Service({}, (short, Setting("both", (0,), drive({0: [(5, 50)]}), holds)))
    outcomes = list(Session(Programme(ASKS, (service,))).service(service, Fake()))
    assert outcomes[0].comparison.mismatches == 2 and not report.passed(outcomes, self_test=False)


def test_the_document_holds_what_the_table_does():
    outcomes = run(Setting("both", (0, 1), drive(WRONG), holds))
    made = report.document(outcomes, {"name": "m"}, self_test=False)
    assert (made["passed"], made["mismatches"], made["comparisons"], made["name"]) == (False, 1, 4, "m")
    assert [item["verdict"] for item in made["settings"]] == ["same", "different"]
