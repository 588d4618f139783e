"""Ids to text, one choice: stop strings, the tokens that go with the text, and what is counted."""

from __future__ import annotations

from byte_text import EOS, ByteTokenizer

from helexa.web.choice_text import ChoiceText
from helexa.web.events import Event, Finished, Started, TextDelta, Token
from helexa.web.streams import Update
from ipc.messages import Finish, TokenLogprobs


def choice(stop: list[str] | None = None) -> ChoiceText:
    return ChoiceText(0, ByteTokenizer().token_bytes, stop or [])


def update(start: int, ids: list[int] | bytes, finish: Finish | None = None) -> Update:
    logprobs = {start + i: TokenLogprobs(-1.0, [], []) for i in range(len(ids))}
    return Update(0, start, list(ids), logprobs, finish)


def finish(reason: str, count: int, stop_token: int | None = None) -> Finish:
    return Finish(reason, 5, 2, count, stop_token)  # type: ignore[arg-type]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def shown(events: list[Event]) -> list[int]:
    return [token.id for event in events if isinstance(event, TextDelta) for token in event.tokens]


def test_plain_reply() -> None:
    """Started comes once; the end of sequence is counted, and has no text."""
    text = choice()
    first = text.advance(update(0, b"hel"))
    last = text.advance(update(3, [*b"lo", EOS], finish("stop", 6, EOS)))
    assert first.events[0] == Started(0) and not any(isinstance(event, Started) for event in last.events)
    assert text_of(first.events + last.events) == "hello" and shown(first.events + last.events) == list(b"hello")
    assert last.events[-1] == Finished(
        0, "stop", [EOS], [*b"hello", EOS], 5, 2, end_token=Token(EOS, TokenLogprobs(-1.0, [], []))
    )


def test_a_stop_string_over_several_tokens_never_leaks() -> None:
    """Its beginning is held back, with its tokens; `keep` counts up to the token that completed it."""
    text = choice(["STOP"])
    first = text.advance(update(0, b"abST"))
    assert text_of(first.events) == "ab" and shown(first.events) == list(b"ab") and first.keep is None
    second = text.advance(update(4, b"OPxyz"))
    assert text_of(second.events) == "" and second.keep == 6
    last = text.advance(update(6, [], finish("stop", 6)))
    assert last.events == [Finished(0, "stop", list(b"STOP"), list(b"abSTOP"), 5, 2, "STOP")] and last.keep is None


def test_a_false_start_comes_out() -> None:
    """What was held back is given out once it is no stop string, and at the end."""
    text = choice(["STOP"])
    events = text.advance(update(0, b"ST")).events + text.advance(update(2, b"AST")).events
    assert text_of(events) == "STA"
    events += text.advance(update(5, [], finish("length", 5))).events
    assert text_of(events) == "STAST" and shown(events) == list(b"STAST")
    assert isinstance(events[-1], Finished) and events[-1].reason == "length" and events[-1].tail == []


def test_a_stop_string_wins_over_the_engines_own_end() -> None:
    """The engine ran on to its end before it heard of the stop: reason and count are the stop's, and no abort is needed."""
    advance = choice(["b"]).advance(update(0, [*b"abc", EOS], finish("length", 4)))
    assert advance.keep is None
    assert advance.events == [Started(0), *advance.events[1:2], Finished(0, "stop", [98], [97, 98], 5, 2, "b")]
    assert text_of(advance.events) == "a"


def test_keep_is_the_completing_token_though_it_is_known_later() -> None:
    """`bc` is complete at the third token, but `abcd` began earlier: when that fails, the count is still the third token's."""
    text = choice(["abcd", "bc"])
    assert text.advance(update(0, b"abc")).keep is None
    advance = text.advance(update(3, b"x"))
    assert advance.keep == 3 and text_of(advance.events) == "a"


def test_half_a_character() -> None:
    """Bytes of a character wait for the rest; at the end of the output they are U+FFFD."""
    text = choice()
    first = text.advance(update(0, "é".encode()[:1]))
    assert text_of(first.events) == ""
    second = text.advance(update(1, "é".encode()[1:]))
    assert text_of(second.events) == "é"
    last = text.advance(update(2, "é".encode()[:1], finish("length", 3)))
    assert text_of(last.events) == "\ufffd"


def test_a_token_before_the_cut_counts_as_shown() -> None:
    """A stop string may cut a token in two: the part before it is text, so its logprobs are given."""

    class Wide(ByteTokenizer):
        def token_bytes(self, id: int) -> bytes:
            return b"ab" if id == 7 else super().token_bytes(id)

    text = ChoiceText(0, Wide().token_bytes, ["b"])
    advance = text.advance(update(0, [7, 120]))
    assert text_of(advance.events) == "a" and shown(advance.events) == [7] and advance.keep == 1
