"""Transcripts side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

Transcript = list[tuple[int, int | None]]  # (token id, digest of the logits it was drawn from), in order


@dataclass(frozen=True)
class Stream:
    """What came of the ask number `ask`; `cut`: it was cancelled, so it may end early or, having been longer, late."""

    ask: int
    tokens: Transcript
    cut: bool = False


@dataclass(frozen=True)
class Comparison:
    """`mismatches` of the `tokens` compared differ in their id or their logits' digest; `first` describes one, for people."""

    tokens: int = 0
    mismatches: int = 0
    first: str = ""

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(self.tokens + other.tokens, self.mismatches + other.mismatches, self.first or other.first)


def compare(expected: Mapping[int, Transcript], streams: Sequence[Stream]) -> Comparison:
    """Every stream against what its ask got alone. A token without a digest, or one too many or too few, is a mismatch."""
    total = Comparison()
    for stream in streams:
        want, got = expected[stream.ask], stream.tokens
        if stream.cut:
            shared = min(len(want), len(got))
            want, got = want[:shared], got[:shared]
        wrong = [at for at, (a, b) in enumerate(zip_longest(want, got)) if a != b or not (b and b[1])]
        first = _describe(stream.ask, wrong[0], want, got) if wrong else ""
        total += Comparison(max(len(want), len(got)), len(wrong), first)
    return total


def _describe(ask: int, at: int, want: Transcript, got: Transcript) -> str:
    if at >= len(got):
        return f"request {ask} ended after {len(got)} of {len(want)} tokens"
    if at >= len(want):
        return f"request {ask} went on after its {len(want)} tokens"
    (a, _), (b, digest) = want[at], got[at]
    if not digest:
        return f"request {ask}, token {at}: no digest of its logits came"
    return f"request {ask}, token {at}: id {b}, alone {a}" if a != b else f"request {ask}, token {at}: same id {a}, other logits"
