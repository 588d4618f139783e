"""What a key may still ask, and what it was given. Pure: `now` in seconds comes in.

A rate is a bucket that holds a minute's worth and fills evenly. The bucket of tokens may be overdrawn by a running reply; the
next request waits until it is above zero again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from helexa.errors import RequestError
from helexa.keys.key_file import Key

MINUTE_S = 60.0


@dataclass
class _Bucket:
    level: float
    filled_at: float

    def fill(self, per_minute: int, now: float) -> None:
        self.level = min(float(per_minute), self.level + (now - self.filled_at) * per_minute / MINUTE_S)
        self.filled_at = now


@dataclass
class Usage:
    """Since the scheduler started."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0  # that the client was sent
    _requests: _Bucket | None = field(default=None, repr=False)
    _tokens: _Bucket | None = field(default=None, repr=False)

    def counts(self) -> dict[str, int]:
        return {
            "requests": self.requests,
            "refused": self.refused,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


class KeyLimits:
    def __init__(self) -> None:
        self.usage: dict[str, Usage] = {}  # by key id

    def admit(self, key: Key, num_open: int, now: float) -> None:
        """Takes a request into the key's rates; raises RequestError 429 where one of them is used up. `num_open`: the key's
        requests that wait or run."""
        usage = self.usage.setdefault(key.id, Usage())
        if key.concurrency and num_open >= key.concurrency:
            raise _refuse(usage, f"{num_open} requests of this key are open and {key.concurrency} may be", 1.0)
        if key.requests_per_minute:
            usage._requests = usage._requests or _Bucket(key.requests_per_minute, now)
            usage._requests.fill(key.requests_per_minute, now)
            if usage._requests.level < 1.0:
                wait = (1.0 - usage._requests.level) * MINUTE_S / key.requests_per_minute
                raise _refuse(usage, f"this key may ask {key.requests_per_minute} times a minute", wait)
        if key.tokens_per_minute:
            usage._tokens = usage._tokens or _Bucket(key.tokens_per_minute, now)
            usage._tokens.fill(key.tokens_per_minute, now)
            if usage._tokens.level <= 0.0:
                wait = (1.0 - usage._tokens.level) * MINUTE_S / key.tokens_per_minute
                raise _refuse(usage, f"this key may use {key.tokens_per_minute} tokens a minute", wait)
        if usage._requests is not None:
            usage._requests.level -= 1.0

    def took(self, key: str, prompt_tokens: int) -> None:
        """A request was accepted."""
        usage = self.usage.setdefault(key, Usage())
        usage.requests += 1
        usage.prompt_tokens += prompt_tokens
        if usage._tokens is not None:
            usage._tokens.level -= prompt_tokens

    def sent(self, key: str, output_tokens: int) -> None:
        usage = self.usage.setdefault(key, Usage())
        usage.output_tokens += output_tokens
        if usage._tokens is not None:
            usage._tokens.level -= output_tokens


def _refuse(usage: Usage, what: str, wait_s: float) -> RequestError:
    usage.refused += 1
    return RequestError("too_many_requests", f"{what}; try again in {wait_s:.0f} s", retry_after=wait_s)
