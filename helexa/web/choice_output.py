"""One choice's output to events: its text, and what a chat model means by it: reasoning, tool calls. Pure."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

from helexa.text.output_parser import OutputParser, ParseRules, Piece
from helexa.web.choice_text import Advance, ChoiceText
from helexa.web.events import Event, Finished, ReasoningDelta, TextDelta, Token, ToolCall
from helexa.web.request import GenerationRequest
from helexa.web.streams import Update


class ChoiceOutput:
    """Each token goes out with the piece that decided its last character, so the tokens of all events are those of the output."""

    def __init__(self, choice: int, request: GenerationRequest, token_bytes: Callable[[int], bytes]) -> None:
        rules = request.rules
        self._choice = choice
        self._text = ChoiceText(choice, _with_markers(token_bytes, rules), request.stop)
        self._parser = OutputParser(rules)
        self._opening = request.opening
        self._plain = rules.format is None and (rules.markers is None or rules.place == "over")
        self._waiting: deque[tuple[int, Token]] = deque()  # tokens that are not out, with where their text ends
        self._chars = 0  # pushed
        self._out = 0  # tokens given out
        self._calls = 0

    def advance(self, update: Update) -> Advance:
        """As ChoiceText.advance; `keep` also where a call ends the reply."""
        advance = self._text.advance(update)
        if self._opening and advance.events:
            advance.events.insert(1, TextDelta(self._choice, self._opening, []))
            self._opening = ""
        if self._plain:
            return advance
        was_done, events = self._parser.done, list[Event]()
        for event in advance.events:
            if isinstance(event, TextDelta):
                self._note(event.tokens)
                events += self._events(self._parser.push(event.text))
            elif isinstance(event, Finished):
                events += self._rest()
                events.append(self._finished(event))
            else:
                events.append(event)
        if self._parser.done and not was_done and advance.keep is None:
            self._text.cut(self._out)
            return Advance(events, None if isinstance(events[-1], Finished) else self._out)
        return Advance(events, advance.keep)

    def _note(self, tokens: list[Token]) -> None:
        for token in tokens:
            self._chars += token.chars
            self._waiting.append((self._chars, token))

    def _events(self, pieces: list[Piece]) -> list[Event]:
        return [self._event(piece) for piece in pieces]

    def _event(self, piece: Piece) -> Event:
        tokens = self._released(piece.taken)
        if piece.kind == "text":
            return TextDelta(self._choice, piece.text, tokens)
        if piece.kind == "reasoning":
            return ReasoningDelta(self._choice, piece.text, tokens)
        self._calls += 1
        return ToolCall(self._choice, self._calls - 1, piece.name, piece.text, tokens)

    def _released(self, taken: int) -> list[Token]:
        tokens = []
        while self._waiting and self._starts_before(taken):
            tokens.append(self._waiting.popleft()[1])
        self._out += len(tokens)
        return tokens

    def _starts_before(self, taken: int) -> bool:
        """A token is out with its last character; once nothing more is taken, with its first."""
        end, token = self._waiting[0]
        return end <= taken or (self._parser.done and end - token.chars < taken)

    def _rest(self) -> list[Event]:
        events = self._events(self._parser.flush())
        if self._waiting and not self._parser.done:  # of white space and markers after the last piece
            events.append(TextDelta(self._choice, "", self._released(self._chars)))
        return events

    def _finished(self, event: Finished) -> Finished:
        if self._parser.done:  # whatever the engine made after the call does not count
            ids = event.ids[: self._out]
            return dataclasses.replace(event, reason="tool_calls", ids=ids, tail=[], stop_string=None, end_token=None)
        if self._calls and event.reason == "stop":
            return dataclasses.replace(event, reason="tool_calls")
        return event


def _with_markers(token_bytes: Callable[[int], bytes], rules: ParseRules) -> Callable[[int], bytes]:
    """Control tokens have no text, but those among the markers do."""
    visible = rules.visible
    return (lambda id: visible.get(id) or token_bytes(id)) if visible else token_bytes
