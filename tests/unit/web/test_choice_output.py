"""One choice's output with reasoning and calls: which tokens go out with which event, and where a call ends the reply."""

from __future__ import annotations

from byte_text import EOS, ByteTokenizer

from helexa.text.output_parser import ParseRules
from helexa.text.reasoning import KNOWN
from helexa.text.tool_formats import Tool
from helexa.text.tool_formats.tagged import TaggedJson
from helexa.web.choice_output import ChoiceOutput
from helexa.web.choice_text import Advance
from helexa.web.events import Event, Finished, ReasoningDelta, Started, TextDelta, ToolCall
from helexa.web.request import GenerationRequest
from helexa.web.streams import Update
from ipc.messages import Finish, SamplingParams

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TOOLS = {"f": Tool("f")}


def output(rules: ParseRules, stop: list[str] | None = None, opening: str = "") -> ChoiceOutput:
    request = GenerationRequest("m", [1], "", SamplingParams(max_tokens=99), 0, [0], stop or [], rules=rules, opening=opening)
    return ChoiceOutput(0, request, ByteTokenizer().token_bytes)


def play(choice: ChoiceOutput, text: str, step: int, reason: str = "stop") -> tuple[list[Event], int | None]:
    """The events of the text, a token a byte, and the token that ended it; the engine runs on after a cut."""
    ids, events, keep = [*text.encode(), EOS], list[Event](), None
    for at in range(0, len(ids), step):
        finish = Finish(reason, 5, 0, len(ids), EOS) if at + step >= len(ids) else None  # type: ignore[arg-type]
        advance: Advance = choice.advance(Update(0, at, ids[at : at + step], {}, finish))
        events += advance.events
        keep = advance.keep if keep is None else keep
    return events, keep


def tokens(events: list[Event]) -> list[int]:
    return [token.id for event in events if not isinstance(event, (Started, Finished)) for token in event.tokens]


def test_every_token_goes_out_once() -> None:
    """In order, with the tail that has no text; however the reply is cut."""
    rules = ParseRules(markers=KNOWN[0], format=TaggedJson(), tools=TOOLS)
    text = f"<think>hm é</think>\n ok {CALL}\n"
    for step in (1, 2, 7, 100):
        events, keep = play(output(rules), text, step)
        finished = events[-1]
        assert isinstance(finished, Finished) and finished.reason == "tool_calls" and keep is None
        assert tokens(events) + finished.tail == finished.ids == [*text.encode(), EOS]
        assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm é"
        assert [event.arguments for event in events if isinstance(event, ToolCall)] == ["{}"]


def test_a_single_call_ends_the_reply_at_its_token() -> None:
    """The engine is told where; what it made beyond is neither shown nor counted."""
    rules = ParseRules(format=TaggedJson(), tools=TOOLS, single=True)
    for step in (1, 5, 200):
        events, keep = play(output(rules), f"ok {CALL} {CALL}", step)
        finished = events[-1]
        assert isinstance(finished, Finished) and finished.reason == "tool_calls"
        assert bytes(finished.ids).decode() == f"ok {CALL}" and tokens(events) == finished.ids
        assert keep == len(finished.ids) or step == 200
        assert len([event for event in events if isinstance(event, ToolCall)]) == 1


def test_a_cut_reply_keeps_its_reason() -> None:
    """A reply with a call that ran out of tokens says so."""
    events, _ = play(output(ParseRules(format=TaggedJson(), tools=TOOLS)), CALL + " and", 3, "length")
    assert isinstance(events[-1], Finished) and events[-1].reason == "length"


def test_markers_that_are_control_tokens() -> None:
    """They have no text of their own, but are seen."""
    rules = ParseRules(markers=KNOWN[0], visible={257: b"<think>", 258: b"</think>"})
    choice = output(rules)
    events = choice.advance(Update(0, 0, [257, 104, 258, 111, EOS], {}, Finish("stop", 1, 0, 5, EOS))).events
    assert [type(event) for event in events] == [Started, ReasoningDelta, TextDelta, Finished]
    assert (events[1].text, events[2].text) == ("h", "o")  # type: ignore[union-attr]


def test_a_stop_string_in_a_call() -> None:
    """What came of the call is text."""
    events, keep = play(output(ParseRules(format=TaggedJson(), tools=TOOLS), stop=['"name"']), CALL, 4)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "<tool_call>{"
    assert keep is not None and isinstance(events[-1], Finished) and events[-1].stop_string == '"name"'


def test_an_opening_comes_first() -> None:
    """Where reasoning stays in the text, so does the marker that the prompt ended with."""
    events, _ = play(output(ParseRules(place="inside"), opening="<think>\n"), "hm</think>ok", 3)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "<think>\nhm</think>ok"
    assert isinstance(events[0], Started)
