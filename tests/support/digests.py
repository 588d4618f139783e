"""Streams over ZeroMQ with a digest of the logits behind each token: equal lists are equal bits."""

from __future__ import annotations

from collections.abc import Callable

from service import DEADLINE_S

from helexa.client import Client, Generation

Seen = list[tuple[int, int | None]]  # (id, digest) of each token of a stream


def ragged_prompts(vocab: int, count: int = 16) -> list[list[int]]:
    return [[3 + (index * 37 + place * 11) % (vocab - 3) for place in range(2 + index * 5)] for index in range(count)]


def together(
    client: Client,
    asked: list[list[int]],
    model: str,
    tokens: int,
    disturb: Callable[[], None] | None = None,
    after_tokens: int = 0,
) -> list[Seen]:
    """All streams at once, of `tokens` and a few more each; `disturb` is called once, when so many tokens have come in all."""
    generations = [submit(client, prompt, model, tokens + index % 5) for index, prompt in enumerate(asked)]
    seen: dict[str, Seen] = {generation.req_id: [] for generation in generations}
    while not all(generation.ended for generation in generations):
        news = client.poll(DEADLINE_S)
        assert news, "the streams hang"
        for generation in news:
            seen[generation.req_id] += [(token.id, token.hash) for token in generation.take()]
        if disturb is not None and sum(map(len, seen.values())) >= after_tokens:
            assert not all(generation.ended for generation in generations), "the disturbance comes too late"
            disturb()
            disturb = None
    assert disturb is None, "nothing was disturbed"
    assert all(generation.finish is not None and generation.finish.reason == "length" for generation in generations)
    return list(seen.values())


def submit(client: Client, prompt: list[int], model: str, tokens: int) -> Generation:
    return client.submit(prompt, model=model, max_tokens=tokens, temperature=0, ignore_eos=True, hash_logits=True)
