"""What every wire format makes of a reply: the protocol, its frames on the wire, and the pieces that formats share. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from helexa.errors import RequestError
from helexa.web.events import Event, ReasoningDelta, TextDelta, Token, ToolCall, Usage

DONE = b"data: [DONE]\n\n"
Document = dict[str, Any]


class Vocabulary(Protocol):
    def token_bytes(self, id: int) -> bytes: ...

    def token_text(self, id: int) -> str: ...


class Reply(Protocol):
    """One reply in one wire format, made from the events of its choices.

    `named`: each frame says its document's `type` in an `event:` line. `end` is what follows the last frame of a whole stream.
    """

    named: bool
    end: bytes

    def opening(self) -> list[Document]:
        """The documents that a stream starts with, once the request is admitted."""
        ...

    def chunks(self, event: Event) -> list[Document]:
        """The streamed documents that this event makes; often none."""
        ...

    def last_chunks(self, usage: Usage) -> list[Document]: ...

    def failure(self, error: RequestError) -> Document:
        """The document that ends a stream which failed."""
        ...

    def add(self, event: Event) -> None:
        """Collects the event for `document`."""
        ...

    def document(self, usage: Usage) -> Document: ...


def frame(document: Document, named: bool) -> bytes:
    """A server-sent event."""
    name = f"event: {document['type']}\n".encode() if named else b""
    return name + b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def made_id(prefix: str, *parts: object) -> str:
    """An id that stands for a part of a reply: the same for the same part, in streams and whole documents."""
    return prefix + hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:24]


@dataclass
class Block:
    """A run of one kind: text, reasoning, or one call."""

    kind: Literal["text", "reasoning", "call"]
    index: int
    parts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.parts)


class Blocks:
    """A choice's events as blocks, for formats that number them."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.reasoning_tokens = 0

    def take(self, event: TextDelta | ReasoningDelta | ToolCall) -> tuple[Block, bool]:
        """The block that the event belongs to, and whether it is new: then the one before it is complete."""
        kind: Literal["text", "reasoning", "call"] = "call"
        if isinstance(event, ReasoningDelta):
            kind = "reasoning"
            self.reasoning_tokens += len(event.tokens)
        elif isinstance(event, TextDelta):
            kind = "text"
        new = not self.all or self.all[-1].kind != kind or kind == "call"
        if new:
            self.all.append(Block(kind, len(self.all)))
        block = self.all[-1]
        block.parts.append(event.arguments if isinstance(event, ToolCall) else event.text)
        block.tokens += event.tokens
        block.name = event.name if isinstance(event, ToolCall) else ""
        return block, new
