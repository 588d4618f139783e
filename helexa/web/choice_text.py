"""One choice's ids to its text, step by step: detokenised, watched for stop strings. Pure.

A token is given out with the text that it completed. So, unless a stop string cut the text, the tokens given out spell exactly
the text given out, after every event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from helexa.text.detokenizer import Detokenizer
from helexa.text.stop_strings import StopResult, StopStrings
from helexa.web.events import Event, Finished, Started, TextDelta, Token
from helexa.web.streams import Update
from ipc.messages import Finish


@dataclass(frozen=True)
class Advance:
    """`keep`: a stop string was completed by output token number `keep`; the choice produces no more events but its Finished."""

    events: list[Event]
    keep: int | None = None


class ChoiceText:
    def __init__(self, choice: int, token_bytes: Callable[[int], bytes], stop: list[str]) -> None:
        self._choice = choice
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopStrings(stop)
        self._ids: list[int] = []
        self._ends: list[int] = []  # where each id's text ends
        self._waiting: deque[tuple[int, int, Token]] = deque()  # tokens whose text is not out, with where it starts and ends
        self._chars = 0  # of text made
        self._out = 0  # of text given out
        self._shown = 0  # tokens given out
        self._keep: int | None = None
        self._stopped: str | None = None
        self._end_token: Token | None = None

    def cut(self, keep: int) -> None:
        """Ends the choice after output token number `keep`, whose text is out: nothing more comes but its Finished."""
        self._keep, self._shown = keep, min(self._shown, keep)

    def advance(self, update: Update) -> Advance:
        """Takes what the engine sent, and returns what the consumer gets."""
        events: list[Event] = [] if self._ids else [Started(self._choice, update.prompt_logprobs)]
        stopped_before = self._keep is not None
        delta = None if stopped_before else self._release(self._take(update))
        if delta is not None:
            events.append(delta)
        if update.finish is not None:
            events.append(self._finished(update.finish))
            return Advance(events)
        return Advance(events, None if stopped_before else self._keep)

    def _take(self, update: Update) -> str:
        """Text that may go out; sets `_keep` when a stop string is complete. The token that ended the sequence has no text."""
        text = ""
        ending = update.finish.stop_token if update.finish is not None else None
        for offset, id in enumerate(update.ids):
            self._ids.append(id)
            if id == ending and offset == len(update.ids) - 1:
                self._ends.append(self._chars)
                self._end_token = Token(id, update.logprobs.get(update.start + offset))
                break
            piece = self._detokenizer.push(id)
            start, self._chars = self._chars, self._chars + len(piece)
            self._ends.append(self._chars)
            inside = not piece and self._token_bytes(id) != b""  # of a character, with which the token goes out
            token = Token(id, update.logprobs.get(update.start + offset), len(piece))
            self._waiting.append((start, self._chars + inside, token))
            text += self._watched(self._stops.push(piece), len(text))
            if self._keep is not None:
                return text
        return text if update.finish is None else text + self._flush(len(text))

    def _watched(self, result: StopResult, before: int) -> str:
        """The result's text; `before` characters of this update come first. Notes which token completed a stop string."""
        if result.stopped is not None:
            end = self._out + before + len(result.text) + len(result.stopped)
            self._keep = min(bisect_left(self._ends, end) + 1, len(self._ids))
            self._stopped = result.stopped
        return result.text

    def _flush(self, before: int) -> str:
        """The end of the text: half a character becomes U+FFFD, and what a stop string held back goes out."""
        rest = self._detokenizer.flush()
        self._chars += len(rest)
        text = self._watched(self._stops.push(rest), before)
        if self._keep is None:
            text += self._watched(self._stops.flush(), before + len(text))
        return text

    def _release(self, text: str) -> TextDelta | None:
        self._out += len(text)
        tokens = []
        while self._waiting and self._is_out(*self._waiting[0][:2]):
            tokens.append(self._waiting.popleft()[2])
        self._shown += len(tokens)
        return TextDelta(self._choice, text, tokens) if text or tokens else None

    def _is_out(self, start: int, end: int) -> bool:
        """Once stopped, a token that began before the cut counts as out."""
        return end <= self._out if self._keep is None else start < self._out

    def _finished(self, finish: Finish) -> Finished:
        """Of the engine's finish only the counts hold when a stop string came first: it may have run on."""
        stopped = self._keep is not None
        del self._ids[self._keep if stopped else finish.output_tokens :]
        reason: Literal["stop", "length"] = "stop" if stopped or finish.reason == "stop" else "length"
        tail, counts = self._ids[self._shown :], (finish.prompt_tokens, finish.cached_tokens)
        return Finished(self._choice, reason, tail, self._ids, *counts, self._stopped, None if stopped else self._end_token)
