"""Stop strings in streamed text."""

from __future__ import annotations

import pytest

from helexa.errors import RequestError
from helexa.text.stop_strings import StopResult, StopStrings


def feed(stops: list[str], pieces: list[str]) -> list[StopResult]:
    finder = StopStrings(stops)
    return [finder.push(piece) for piece in pieces] + [finder.flush()]


def test_a_stop_over_several_pushes_leaks_nothing() -> None:
    """The prefix waits; the text before it does not."""
    assert feed(["<end>"], ["ab<", "en", "d>cd"]) == [("ab", None), ("", None), ("", "<end>"), ("", "<end>")]


def test_a_prefix_that_fails_comes_out() -> None:
    """As soon as it can no longer become the stop string, and the longest new prefix waits in its place."""
    assert feed(["aab"], ["aa", "a", "c"]) == [("", None), ("a", None), ("aac", None), ("", None)]


def test_the_end_gives_up_what_waits() -> None:
    """At the end of the text a prefix is text."""
    assert feed(["stop"], ["go sto"]) == [("go ", None), ("sto", None)]


def test_earliest_start_wins() -> None:
    """A stop that starts earlier beats one that is complete earlier, and if it fails the other still counts."""
    assert feed(["abcd", "bc"], ["abc", "d"]) == [("", None), ("", "abcd"), ("", "abcd")]
    assert feed(["abcd", "bc"], ["abc", "x"]) == [("", None), ("a", "bc"), ("", "bc")]
    assert feed(["abcd", "bc"], ["abc"]) == [("", None), ("a", "bc")]


def test_at_one_start_the_shortest_wins() -> None:
    """It is the first to be complete; it does not wait for the longer."""
    assert feed(["ab", "abc"], ["xabc"]) == [("x", "ab"), ("", "ab")]
    assert feed(["abc", "ab"], ["a", "b", "c"])[1] == ("", "ab")


def test_no_stops() -> None:
    """Text passes at once."""
    assert feed([], ["a", ""]) == [("a", None), ("", None), ("", None)]


def test_empty_stop_is_refused() -> None:
    """It would match everywhere."""
    with pytest.raises(RequestError, match="empty"):
        StopStrings(["a", ""])
