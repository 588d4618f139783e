"""However a reply is cut into deltas, its text, tokens and counts are the same."""

from __future__ import annotations

from byte_text import EOS, ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st

from helexa.web.choice_text import ChoiceText
from helexa.web.events import Event, Finished, TextDelta
from helexa.web.streams import Update
from ipc.messages import Finish, TokenLogprobs

LETTERS = "abé☃"


def play(ids: list[int], stops: list[str], cuts: list[int]) -> tuple[list[Event], int | None]:
    """The events of a reply in pieces that end at `cuts`; the engine runs to its end whatever is stopped."""
    choice = ChoiceText(0, ByteTokenizer().token_bytes, stops)
    events: list[Event] = []
    keep = None
    start = 0
    for end in sorted({*(min(cut, len(ids)) for cut in cuts), len(ids)}):
        finish = Finish("stop", 1, 0, len(ids), EOS) if end == len(ids) else None
        logprobs = {at: TokenLogprobs(-1.0, [], []) for at in range(start, end)}
        advance = choice.advance(Update(0, start, ids[start:end] if keep is None else [], logprobs, finish))
        events += advance.events
        keep = advance.keep or keep
        start = end
    return events, keep


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@given(
    st.text(LETTERS, max_size=12),
    st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_cuts_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    """Text is what comes before the earliest stop string, tokens shown spell it, ids counted end where it was completed."""
    ids = [*text.encode(), EOS]
    events, _ = play(ids, stops, cuts)
    finished = events[-1]
    assert isinstance(finished, Finished)
    at, _, stop = min(((text.find(stop), len(stop), stop) for stop in stops if stop in text), default=(len(text), 0, ""))
    assert text_of(events) == text[:at]
    assert finished.ids == ([*(text[:at] + stop).encode()] if stop else ids)
    shown = [token.id for event in events if isinstance(event, TextDelta) for token in event.tokens]
    assert bytes(shown).decode() == text[:at]
    assert shown + finished.tail == finished.ids
    assert [event for event in events if isinstance(event, Finished)] == [finished]
