"""Limits of a key: how many at once, how often, how many tokens. Time comes in as a value."""

from __future__ import annotations

import pytest

from helexa.errors import RequestError
from helexa.keys.key_file import Key
from helexa.keys.key_limits import KeyLimits


def key(**limits: float) -> Key:
    return Key("key-1", "n", "0" * 64, 1, **limits)  # type: ignore[arg-type]


def refused(limits: KeyLimits, of: Key, num_open: int, now: float) -> RequestError:
    with pytest.raises(RequestError) as caught:
        limits.admit(of, num_open, now)
    assert caught.value.code == "too_many_requests" and caught.value.status == 429
    return caught.value


def test_concurrency():
    """As many as are open now, however they end."""
    limits, two = KeyLimits(), key(concurrency=2)
    limits.admit(two, 0, 0.0)
    limits.admit(two, 1, 0.0)
    assert refused(limits, two, 2, 0.0).retry_after == 1.0
    limits.admit(two, 1, 0.0)
    assert limits.usage["key-1"].refused == 1


def test_requests_a_minute():
    """A minute's worth at once, then one every sixtieth of it; Retry-After says when."""
    limits, three = KeyLimits(), key(requests_per_minute=3)
    for _ in range(3):
        limits.admit(three, 0, 100.0)
    assert refused(limits, three, 0, 100.0).retry_after == pytest.approx(20.0)
    assert refused(limits, three, 0, 115.0).retry_after == pytest.approx(5.0)
    limits.admit(three, 0, 120.0)
    refused(limits, three, 0, 120.0)
    for _ in range(3):
        limits.admit(three, 0, 1000.0)  # no more than a minute's worth is saved up
    refused(limits, three, 0, 1000.0)


def test_tokens_a_minute():
    """Prompts count when they are taken, output when it is sent; an overdrawn key waits until it is above zero."""
    limits, sixty = KeyLimits(), key(tokens_per_minute=60)
    limits.admit(sixty, 0, 0.0)
    limits.took("key-1", 50)
    limits.admit(sixty, 1, 0.0)  # 10 are left
    limits.took("key-1", 5)
    limits.sent("key-1", 35)
    assert refused(limits, sixty, 2, 0.0).retry_after == pytest.approx(31.0)
    refused(limits, sixty, 2, 29.0)
    limits.admit(sixty, 2, 31.0)
    assert limits.usage["key-1"].counts() == {"requests": 2, "refused": 2, "prompt_tokens": 55, "output_tokens": 35}


def test_a_refused_request_costs_nothing():
    """One limit refuses before the other is touched."""
    limits, both = KeyLimits(), key(requests_per_minute=1, tokens_per_minute=10)
    limits.admit(both, 0, 0.0)
    limits.took("key-1", 10)
    refused(limits, both, 0, 30.0)  # not yet: half a request
    limits.admit(both, 0, 60.0)


def test_keys_do_not_touch_each_other():
    limits = KeyLimits()
    first, second = key(requests_per_minute=1), Key("key-2", "m", "1" * 64, 1, requests_per_minute=1)
    limits.admit(first, 0, 0.0)
    limits.admit(second, 0, 0.0)
    refused(limits, first, 0, 0.0)
