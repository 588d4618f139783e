"""What is asked: ragged, of both kinds, the same every time, within the context."""

from __future__ import annotations

import pytest

from helexa.errors import StartError
from helexa.verify.asks import LONG_PROMPT, SHARED_PREFIX, make_asks


@pytest.mark.parametrize("context", [256, 300, 512, 1024, 8192])
def test_asks_fit_into_the_context_and_differ(context):
    """Prompts and replies fit, prompt lengths vary, and greedy and sampled requests are among any two neighbours."""
    asks = make_asks(64, 259, context, 24)
    assert len(asks) == 64 and asks == make_asks(64, 259, context, 24)
    assert all(len(ask.prompt_ids) + ask.max_tokens <= context and ask.room == context - len(ask.prompt_ids) for ask in asks)
    assert all(0 <= token < 259 for ask in asks for token in ask.prompt_ids)
    assert len({len(ask.prompt_ids) for ask in asks}) > 10
    assert all(asks[i].greedy != asks[i + 1].greedy for i in range(63))
    assert len({ask.seed for ask in asks}) == 64


def test_the_long_prompt_is_there_where_it_fits():
    """It is what shows a split at 512 tokens."""
    assert len(make_asks(8, 259, 1024, 24)[-1].prompt_ids) == LONG_PROMPT
    assert max(len(ask.prompt_ids) for ask in make_asks(8, 259, 512, 24)) < 512


def test_some_prompts_share_a_prefix_of_whole_blocks():
    """Else no cached block could be met by another request."""
    starts = [ask.prompt_ids[:SHARED_PREFIX] for ask in make_asks(16, 259, 1024, 24)]
    assert max(starts.count(start) for start in starts) >= 3


def test_a_context_that_shows_nothing_is_refused():
    with pytest.raises(StartError, match="too short to verify"):
        make_asks(8, 259, 128, 24)
