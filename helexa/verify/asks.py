"""What is asked of every service: ragged prompts of known ids, greedy and sampled. Pure, and the same every time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helexa.errors import StartError

LEAST_CONTEXT = 256
LONGEST_PROMPT = 96  # of the ragged prompts
SHARED_PREFIX = 32  # tokens that every fourth prompt begins with
LONG_PROMPT = 600  # the one prompt that no step holds whole
KINDS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 0.0},
    {"temperature": 1.2, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.0, "frequency_penalty": 0.3},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05},
)


@dataclass(frozen=True)
class Ask:
    """One request; its reply has exactly `max_tokens` tokens, since it goes on past the end of sequence."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    params: Mapping[str, Any]
    room: int  # tokens that the context has for output

    @property
    def greedy(self) -> bool:
        return bool(self.params["temperature"] == 0.0)


def make_asks(count: int, vocab: int, context: int, tokens: int) -> list[Ask]:
    """`count` ragged asks of `tokens` to 2 * `tokens` output tokens; the last has a prompt longer than any step where the context
    holds one. Raises StartError where the context is too short to show anything."""
    if context < LEAST_CONTEXT:
        raise StartError(f"a context of {context} tokens is too short to verify; at least {LEAST_CONTEXT} are needed")
    draw = random.Random(20_240_229)
    longest = min(LONGEST_PROMPT, context // 3)
    shared = [draw.randrange(vocab) for _ in range(SHARED_PREFIX)]
    asks = []
    for index in range(count):
        prompt = [draw.randrange(vocab) for _ in range(1 + index * 37 % longest)]
        if index % 4 == 3:
            prompt = [*shared, *prompt][: max(longest, SHARED_PREFIX + 1)]
        output = min(tokens + index * 7 % (tokens + 1), context // 4)
        kind = KINDS[index % len(KINDS)]
        asks.append(Ask(tuple(prompt), output, draw.getrandbits(63), kind, context - len(prompt)))
    if context >= LONG_PROMPT + 2 * tokens:
        prompt = [draw.randrange(vocab) for _ in range(LONG_PROMPT)]
        asks[-1] = dataclasses.replace(asks[-1], prompt_ids=tuple(prompt), room=context - LONG_PROMPT)
    return asks
