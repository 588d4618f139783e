"""The internal event stream: what a choice's output becomes before any wire format. Values only."""

from __future__ import annotations

from dataclasses import dataclass
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
    """The choice has its first output token."""

    choice: int


@dataclass(frozen=True)
class TextDelta:
    """More text, and the tokens whose text is now out. Either may be empty, not both."""

    choice: int
    text: str
    tokens: list[Token]


@dataclass(frozen=True)
class Finished:
    """The choice ended. `tail`: ids that count and have no text (end of sequence, what a stop string cut off).

    `ids` is the whole output, as counted in the usage.
    """

    choice: int
    reason: Literal["stop", "length"]
    tail: list[int]
    ids: list[int]
    prompt_tokens: int
    cached_tokens: int


Event = Started | TextDelta | Finished


@dataclass(frozen=True)
class Usage:
    """Of a whole reply. A prompt counts once, however many choices it has."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
