"""The internal event stream: what a choice's output becomes before any wire format. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ipc.messages import TokenLogprobs


@dataclass(frozen=True)
class Token:
    """An output token. `chars` is how many characters it completed: 0 in the middle of one."""

    id: int
    logprobs: TokenLogprobs | None = None
    chars: int = 0


@dataclass(frozen=True)
class Started:
    """The choice has its first output token. `prompt_logprobs` are of each prompt token but the first, where asked for."""

    choice: int
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(frozen=True)
class TextDelta:
    """More text, and the tokens whose text is now out. Either may be empty, not both."""

    choice: int
    text: str
    tokens: list[Token]


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    choice: int
    text: str
    tokens: list[Token]


@dataclass(frozen=True)
class ToolCall:
    """A whole call: number `index` of its choice. `arguments` is the text of a JSON object."""

    choice: int
    index: int
    name: str
    arguments: str
    tokens: list[Token]


@dataclass(frozen=True)
class Finished:
    """The choice ended. `tail`: ids that count and have no text (end of sequence, what a stop string cut off).

    `ids` is the whole output, as counted in the usage. `stop_string` or `end_token` is what
    ended it.
    """

    choice: int
    reason: Literal["stop", "length", "tool_calls"]
    tail: list[int]
    ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    stop_string: str | None = None
    end_token: Token | None = None


Event = Started | TextDelta | ReasoningDelta | ToolCall | Finished


@dataclass(frozen=True)
class Usage:
    """Of a whole reply. A prompt counts once, however many choices it has. `completed_at` is in seconds since the epoch."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    completed_at: int = 0
