"""Prompts of random words, each unlike any that was sent before. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

TOKENS_A_WORD = 1.15  # where no tokenizer is at hand
# fmt: off
WORDS = (
    "river", "stone", "light", "garden", "window", "paper", "music", "winter", "summer", "market", "bridge", "forest",
    "letter", "mirror", "silver", "orange", "table", "candle", "ocean", "engine", "doctor", "teacher", "village", "mountain",
    "corner", "circle", "number", "answer", "moment", "picture", "shadow", "kitchen", "harbor", "castle", "journey", "station",
    "planet", "basket", "bottle", "button", "carpet", "cotton", "desert", "dinner", "dragon", "eagle", "farmer", "finger",
    "flower", "friend", "hammer", "island", "jacket", "ladder", "leather", "lemon", "magnet", "meadow", "needle", "office",
    "palace", "pencil", "pepper", "pillow", "pocket", "rabbit", "rocket", "saddle", "season", "sister", "spider", "spring",
    "square", "street", "supper", "thread", "ticket", "timber", "travel", "tunnel", "valley", "velvet", "wagon", "walnut",
    "weather", "whistle", "yellow", "red", "blue", "green", "small", "large", "quick", "quiet", "warm", "cold", "early",
    "late", "open", "closed", "near", "far",
)
# fmt: on

Count = Callable[[str], int]  # tokens of a prompt


class PromptMaker:
    """`nonce` makes this run's prompts new to every server, so that no cache holds them; `seed` repeats the words. Prompts have
    `tokens` tokens, `shared` of which they begin with alike. Without `count` the lengths are estimates."""

    def __init__(self, nonce: str, seed: int, tokens: int, shared: int = 0, count: Count | None = None) -> None:
        self._nonce = nonce
        self._seed = seed
        self._tokens = tokens
        self._count = count
        self._made = 0
        self._prefix = fit(f"{nonce} ", self._words("shared"), shared, count) + " " if shared else ""

    def make(self, number: int) -> list[str]:
        """So many prompts, none of them made before."""
        made = []
        for _ in range(number):
            self._made += 1
            start = f"{self._prefix}{self._nonce}{self._made} "
            made.append(fit(start, self._words(str(self._made)), self._tokens, self._count))
        return made

    def _words(self, what: str) -> list[str]:
        return random.Random(f"{self._seed} {what}").choices(WORDS, k=max(1, self._tokens))


def fit(start: str, words: Sequence[str], tokens: int, count: Count | None) -> str:
    """`start` and as many of `words` as make `tokens` tokens, filled up with short words where whole ones leave a gap. `start`
    stays whole, so a few tokens cannot be had."""

    def text(used: int) -> str:
        return (start + " ".join(words[:used])).rstrip()

    if count is None:
        return text(max(0, round((tokens - len(start) / 4) / TOKENS_A_WORD)))
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text(middle)) <= tokens:
            low = middle
        else:
            high = middle - 1
    fitted = text(low)
    while count(f"{fitted} a") <= tokens:
        fitted += " a"
    return fitted
