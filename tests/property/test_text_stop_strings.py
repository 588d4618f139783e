"""Stop strings against a naive reference on the whole text, over every way to cut it."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from helexa.text.stop_strings import StopStrings

letters = st.sampled_from("ab")
texts = st.text(letters, max_size=8)
stop_lists = st.lists(st.text(letters, min_size=1, max_size=5), max_size=3)


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """(text before the stop, the stop): smallest start, then shortest, of all occurrences in the whole text."""
    found = [(start, len(stop), stop) for stop in stops for start in range(len(text)) if text.startswith(stop, start)]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    finder = StopStrings(stops)
    out, stopped = "", None
    for piece in pieces:
        text, stopped = finder.push(piece)
        out += text
        if stopped is not None:
            break
    text, stopped = finder.flush()
    return out + text, stopped


def splits(text: str) -> list[list[str]]:
    """Every way to cut `text` into non-empty pieces."""
    places = range(1, len(text))
    cuts = [cut for count in range(len(text)) for cut in combinations(places, count)] or [()]
    return [[text[a:b] for a, b in zip((0, *cut), (*cut, len(text)), strict=True)] for cut in cuts]


@settings(max_examples=150, deadline=None)
@given(stop_lists, texts)
def test_every_split_gives_the_reference(stops: list[str], text: str) -> None:
    """The text that came out and the stop that ended it do not depend on the cuts."""
    expected = reference(stops, text)
    for pieces in splits(text):
        assert run(stops, pieces) == expected


@given(stop_lists, st.lists(texts, max_size=6))
def test_holds_back_no_more_than_it_must(stops: list[str], pieces: list[str]) -> None:
    """What is held back could still be cut off: some continuation makes a stop string that starts where the held text does."""
    finder = StopStrings(stops)
    pushed = out = ""
    for piece in pieces:
        result = finder.push(piece)
        pushed, out = pushed + piece, out + result.text
        if result.stopped is not None:
            return
        held = pushed[len(out) :]
        assert pushed.startswith(out)
        assert not held or any(stop.startswith(held) or held.startswith(stop) for stop in stops)
        assert reference(stops, pushed)[1] is None or held, "a complete stop was let through"


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=4), st.integers(1, 7))
def test_unicode_text(text: str, stops: list[str], size: int) -> None:
    """Over any characters, cut into pieces of one size."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert run(stops, pieces) == reference(stops, text)
