"""Prompts that no cache can hold, of the length asked for."""

from __future__ import annotations

import pytest

from helexa.bench.prompts import PromptMaker


def by_words(text: str) -> int:
    return len(text.split())


def by_bytes(text: str) -> int:
    return len(text.encode())


@pytest.mark.parametrize("count", [by_words, by_bytes, None])
def test_no_two_prompts_begin_alike(count):
    """Within a run the number differs, between runs the nonce, both within the first characters."""
    prompts = PromptMaker("ab12", 0, 50, count=count).make(40) + PromptMaker("cd34", 0, 50, count=count).make(40)
    assert len({prompt[:8] for prompt in prompts}) == 80


@pytest.mark.parametrize("tokens", [30, 109, 512])
def test_prompts_have_the_length_asked_for(tokens):
    """To the token where words are tokens, and within a short word where bytes are."""
    assert {by_words(prompt) for prompt in PromptMaker("ab", 3, tokens, count=by_words).make(5)} == {tokens}
    assert all(tokens - 1 <= by_bytes(prompt) <= tokens for prompt in PromptMaker("ab", 3, tokens, count=by_bytes).make(20))


def test_without_a_tokenizer_the_length_grows_with_what_is_asked():
    short, long = (PromptMaker("ab", 0, tokens).make(1)[0] for tokens in (50, 500))
    assert 30 < by_words(short) < 50 and 400 < by_words(long) < 500


def test_the_seed_repeats_the_words():
    first, again, other = (PromptMaker("ab", seed, 60, count=by_words).make(1)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_a_shared_prefix_is_shared_and_new_to_the_server():
    """Prompts differ after it; another run's prefix is another one."""
    prompts = PromptMaker("ab", 0, 60, shared=20, count=by_words).make(3)
    assert len({" ".join(prompt.split()[:20]) for prompt in prompts}) == 1
    assert len({prompt.split()[20] for prompt in prompts}) == 3
    assert {by_words(prompt) for prompt in prompts} == {60}
    other = PromptMaker("cd", 0, 60, shared=20, count=by_words).make(1)[0]
    assert other.split()[0] != prompts[0].split()[0]
