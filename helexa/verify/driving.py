"""Ways to put asks to a service: alone, together, joining and leaving, twice. Through helexa.client, with no HTTP in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helexa.client import Client, Generation
from helexa.verify.asks import Ask
from helexa.verify.comparison import Stream, Transcript

JOIN_AFTER = 3  # tokens of some stream, before the second half joins
VICTIM_TOKENS = 256  # a stream to be cancelled is longer than the one it is compared with


@dataclass(frozen=True)
class Observed:
    streams: list[Stream]
    cached_tokens: int = 0  # prompt tokens that the service says it did not compute
    cancelled: int = 0


Drive = Callable[[Client, Mapping[int, Ask]], Observed]  # the asks by number


def alone(client: Client, asks: Mapping[int, Ask]) -> Observed:
    """One after the other."""
    streams, cached = [], 0
    for number, ask in asks.items():
        generation = _submit(client, ask)
        streams.append(Stream(number, _transcript(generation)))
        cached += _cached(generation)
    return Observed(streams, cached)


def together(client: Client, asks: Mapping[int, Ask]) -> Observed:
    """All at once."""
    generations = {number: _submit(client, ask) for number, ask in asks.items()}
    return _collect(generations)


def cold_then_cached(client: Client, asks: Mapping[int, Ask]) -> Observed:
    """All at once, then all again."""
    streams, cached = [], 0
    for _ in range(2):
        seen = _collect({number: _submit(client, ask) for number, ask in asks.items()})
        streams += seen.streams
        cached += seen.cached_tokens
    return Observed(streams, cached)


def joins_and_cancels(client: Client, asks: Mapping[int, Ask]) -> Observed:
    """Half of the asks; once one of them has a few tokens, the others, and doubles of some that are cancelled: one at once, the
    rest as soon as they have a token."""
    numbers = list(asks)
    early, late = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    live = {number: _submit(client, asks[number]) for number in early}
    tokens: dict[str, Transcript] = {generation.req_id: [] for generation in live.values()}
    while not any(len(seen) >= JOIN_AFTER for seen in tokens.values()) and not all(item.ended for item in live.values()):
        _take(client, tokens)
    victims = {number: _submit(client, _longer(asks[number])) for number in late[:4]}
    live |= {number: _submit(client, asks[number]) for number in late}
    tokens |= {generation.req_id: [] for generation in [*victims.values(), *live.values()] if generation.req_id not in tokens}
    if victims:
        next(iter(victims.values())).cancel()
    cancelled = min(1, len(victims))
    while not all(generation.ended for generation in [*live.values(), *victims.values()]):
        _take(client, tokens)
        for victim in victims.values():
            if not victim.ended and tokens[victim.req_id]:
                victim.cancel()
                cancelled += 1
    _take(client, tokens)
    whole = [Stream(number, tokens[generation.req_id]) for number, generation in live.items()]
    cut = [Stream(number, tokens[victim.req_id], cut=True) for number, victim in victims.items()]
    return Observed(whole + cut, sum(_cached(item) for item in live.values()), cancelled)


def _longer(ask: Ask) -> Ask:
    return dataclasses.replace(ask, max_tokens=min(VICTIM_TOKENS, ask.room))


def _submit(client: Client, ask: Ask) -> Generation:
    return client.submit(
        ask.prompt_ids,
        max_tokens=ask.max_tokens,
        seed=ask.seed,
        ignore_eos=True,
        hash_logits=True,
        **ask.params,
    )


def _transcript(generation: Generation) -> Transcript:
    return [(token.id, token.hash) for token in generation]


def _take(client: Client, tokens: dict[str, Transcript]) -> None:
    """Waits for news, and adds what came."""
    for generation in client.poll():
        tokens[generation.req_id] += [(token.id, token.hash) for token in generation.take()]


def _collect(generations: Mapping[int, Generation]) -> Observed:
    streams = [Stream(number, _transcript(generation)) for number, generation in generations.items()]
    return Observed(streams, sum(_cached(generation) for generation in generations.values()))


def _cached(generation: Generation) -> int:
    return generation.finish.cached_tokens if generation.finish is not None else 0
