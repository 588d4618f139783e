"""A reply's text to pieces: text, reasoning, tool calls. The pieces do not depend on how the text is cut into pushes.

Nothing is lost: the pieces hold every character but the markers of what was understood and the white space next to those. A
section that is no well-formed call of tools that were offered is text, markers and all; so it is held back until that is known.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from helexa.text.reasoning import Markers, Place
from helexa.text.tool_formats import Call, Tool, ToolFormat


@dataclass(frozen=True)
class ParseRules:
    """`markers` None: there is no reasoning, or it stays in the text. `format` None: no tools. `single`: the first call ends the
    reply. `visible`: control tokens that are markers, which so have text."""

    markers: Markers | None = None
    place: Place = "before"
    format: ToolFormat | None = None
    tools: dict[str, Tool] = field(default_factory=dict)
    single: bool = False
    visible: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """`taken` counts the characters of the reply that are decided with this piece: its own, what came before, and markers."""

    kind: Literal["text", "reasoning", "call"]
    text: str  # of a call, its arguments
    taken: int
    name: str = ""  # of a call


class _State(enum.Enum):
    START = "start"
    REASONING = "reasoning"
    CONTENT = "content"
    SECTION = "section"
    DONE = "done"


class OutputParser:
    """`done`: with `single`, a call is complete and nothing more is taken."""

    def __init__(self, rules: ParseRules) -> None:
        self._rules = rules
        self._opens = rules.format.opens if rules.format is not None else ()
        self._buffer = ""  # what is not decided
        self._taken = 0
        self._searched = 0  # of a section
        self._trim = rules.place == "inside"  # white space comes next to a marker
        self._begun = False  # text or a call came
        self._state = _State.CONTENT
        if rules.markers is not None and rules.place != "over":
            self._state = _State.REASONING if rules.place == "inside" else _State.START

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        return self._run(final=False)

    def flush(self) -> list[Piece]:
        """What is held back, when no more text comes."""
        return self._run(final=True)

    def _run(self, final: bool) -> list[Piece]:
        steps = {
            _State.START: self._start,
            _State.REASONING: self._reasoning,
            _State.CONTENT: self._content,
            _State.SECTION: self._section,
        }
        pieces: list[Piece] = []
        while self._buffer and self._state is not _State.DONE:
            before = self._state, len(self._buffer)
            pieces += steps[self._state](final)
            if before == (self._state, len(self._buffer)):
                break
        return _joined(pieces)

    # states

    def _start(self, final: bool) -> list[Piece]:
        assert self._rules.markers is not None
        marker = self._rules.markers.open
        body = self._buffer.lstrip()
        if body.startswith(marker):
            self._take(len(self._buffer) - len(body) + len(marker))
            self._state, self._trim = _State.REASONING, True
        elif final or not marker.startswith(body):
            self._state = _State.CONTENT
        return []

    def _reasoning(self, final: bool) -> list[Piece]:
        assert self._rules.markers is not None
        if not self._trimmed(final):
            return []
        marker = self._rules.markers.close
        at = self._buffer.find(marker)
        if at >= 0:
            text = self._buffer[:at].rstrip()
            self._take(at + len(marker))
            self._state, self._trim = _State.CONTENT, True
            return self._piece("reasoning", text)
        keep = 0 if final else _held(self._buffer, (marker,))
        return self._emit("reasoning", len(self._buffer) - keep)

    def _content(self, final: bool) -> list[Piece]:
        if not self._trimmed(final):
            return []
        start = self._section_start()
        if start is None:
            keep = 0 if final or self._rules.format is None else _held(self._buffer, self._opens, self._may_be_bare())
            self._begun = self._begun or bool(self._buffer[: len(self._buffer) - keep].strip())
            return self._emit("text", len(self._buffer) - keep)
        pieces = self._emit("text", len(self._buffer[:start].rstrip()))
        self._state, self._searched = _State.SECTION, 0
        return pieces

    def _section(self, final: bool) -> list[Piece]:
        """The buffer is white space, then a section."""
        assert self._rules.format is not None
        section = self._buffer.lstrip()
        lead = len(self._buffer) - len(section)
        end = self._rules.format.section_end(section, self._searched)
        if end is None:
            self._searched = len(section)
            if not final:
                return []
            end = len(section)
        self._state, self._begun = _State.CONTENT, True
        calls = self._rules.format.calls(section[:end], self._rules.tools)
        if not calls or any(call.name not in self._rules.tools for call in calls):
            return self._emit("text", lead + end)
        self._take(lead + end)
        self._trim = True
        if self._rules.single:
            self._state = _State.DONE
        return self._called(calls[:1] if self._rules.single else calls)

    # parts

    def _may_be_bare(self) -> bool:
        return self._rules.format is not None and self._rules.format.bare and not self._begun

    def _section_start(self) -> int | None:
        if self._may_be_bare() and self._buffer.lstrip().startswith("{"):
            return len(self._buffer) - len(self._buffer.lstrip())
        found = [at for at in (self._buffer.find(marker) for marker in self._opens) if at >= 0]
        return min(found, default=None)

    def _trimmed(self, final: bool) -> bool:
        """Drops the white space after a marker; False while there is nothing else."""
        if self._trim:
            body = self._buffer.lstrip()
            self._take(len(self._buffer) - len(body))
            self._trim = not body
        return bool(self._buffer)

    def _take(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._taken += count

    def _emit(self, kind: Literal["text", "reasoning"], count: int) -> list[Piece]:
        text = self._buffer[:count]
        self._take(count)
        return self._piece(kind, text)

    def _piece(self, kind: Literal["text", "reasoning"], text: str) -> list[Piece]:
        return [Piece(kind, text, self._taken)] if text else []

    def _called(self, calls: Iterable[Call]) -> list[Piece]:
        return [Piece("call", call.arguments, self._taken, call.name) for call in calls]


def _held(text: str, markers: Iterable[str], bare: bool = False) -> int:
    """How much of the end may still become a marker, or is white space that may turn out to stand before one."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    body = text[: len(text) - longest]
    return len(text) - len(body.rstrip())


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one kind are one piece; each call stays one."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and piece.kind != "call" and joined[-1].kind == piece.kind:
            piece = Piece(piece.kind, joined.pop().text + piece.text, piece.taken)
        joined.append(piece)
    return joined
