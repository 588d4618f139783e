"""Which services are started, and what is asked of each. Pure.

A witness is what the service's own counters say of a setting: that the rows did share a step, that prompts were split, that
somebody was preempted. A setting whose witness does not hold has shown nothing, and fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helexa.verify import driving
from helexa.verify.asks import Ask
from helexa.verify.driving import Drive, Observed

BLOCK_SIZE = 16  # tokens
ALL_SEATS = 64
RANKS = 2  # of the setting with several
PREEMPTED = 8  # most streams that contend for too few blocks
CACHING: Mapping[str, Any] = {"cpu.threads": 2, "cache.prefix_mib": 1024}

# On every service, whatever a user's file says: steps are sized by tokens alone, nothing is cached, nothing is refused.
COMMON: Mapping[str, Any] = {
    "model.context": 1024,
    "admission.seats": ALL_SEATS,
    "admission.batching": True,
    "admission.queue_depth": 256,
    "admission.queue_wait_s": 3600.0,
    "scheduling.min_step_ms": 1e6,
    "scheduling.step_tokens": 512,
    "scheduling.steps_ahead": 1,
    "scheduling.reserve_tokens": 2048,
    "cache.prefix_mib": 0,
    "memory.kv_blocks": "auto",
    "cpu.threads": 1,
    "devices.tensor_parallel": 1,
}


@dataclass(frozen=True)
class Seen:
    """What a witness may look at: the counters before and after, what the service says of its ops and ranks, and what was
    observed."""

    before: Mapping[str, int]
    after: Mapping[str, int]
    ops: str
    asks: Sequence[Ask]
    observed: Observed
    ranks: int = 1

    def rose(self, counter: str) -> int:
        return self.after[counter] - self.before[counter]


@dataclass(frozen=True)
class Witness:
    """`text` is for people. `not_served`: this build or model cannot have the setting at all."""

    holds: bool
    text: str
    not_served: bool = False


@dataclass(frozen=True)
class Setting:
    name: str
    asks: tuple[int, ...]
    drive: Drive
    witness: Callable[[Seen], Witness]


@dataclass(frozen=True)
class Service:
    """One service, started with `flags` beside COMMON, and its settings in order (a service's most rows a step only grow)."""

    flags: Mapping[str, Any]
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Programme:
    """The first setting of the first service is the baseline that all others are compared with."""

    asks: list[Ask]
    services: tuple[Service, ...]


def full(asks: list[Ask], most_ranks: int) -> Programme:
    """Every setting; `asks` are 64, the last with the long prompt. `most_ranks`: that the model can be split over, where it runs."""
    ragged, everything = _numbers(16), _numbers(len(asks))
    with_long, ragged_and_long = (*_numbers(7), len(asks) - 1), (*_numbers(15), len(asks) - 1)
    return Programme(
        asks,
        (
            Service(
                {},
                (
                    Setting("alone", everything, driving.alone, rows(1)),
                    Setting("2 streams", _numbers(2), driving.together, rows(2)),
                    Setting("8 streams", _numbers(8), driving.together, rows(8)),
                    Setting("16 streams", ragged, driving.together, rows(16)),
                    Setting("64 streams", everything, driving.together, rows(len(asks))),
                    Setting("joins and cancels", ragged, driving.joins_and_cancels, joined),
                    Setting("chunks of 512", with_long, driving.together, split(512)),
                    Setting("alone, after all those", with_long, driving.alone, one_row_a_step),
                ),
            ),
            Service(
                {"cpu.threads": 2, "scheduling.steps_ahead": 16},
                (
                    Setting("alone, 2 threads, 16 steps", with_long, driving.alone, both(threads(2), by_itself)),
                    Setting("16 streams, 2 threads", ragged, driving.together, both(threads(2), rows(16))),
                ),
            ),
            Service(
                {"cpu.threads": 2, "scheduling.step_tokens": 17},
                (
                    Setting("chunks of 17, alone", with_long, driving.alone, split(17)),
                    Setting("chunks of 17, 16 streams", ragged_and_long, driving.together, both(split(17), mixed)),
                ),
            ),
            Service(
                {"cpu.threads": 2, "scheduling.step_tokens": 1},
                (Setting("chunks of 1, 8 streams", _numbers(8), driving.together, both(split(1), mixed)),),
            ),
            _preempting(asks),
            Service(CACHING, (Setting("cold, then cached", ragged_and_long, driving.cold_then_cached, cached),)),
            _split(ragged_and_long, most_ranks),
        ),
    )


def quick(asks: list[Ask], most_ranks: int) -> Programme:
    """The settings that find most, with few asks."""
    everything = _numbers(len(asks))
    return Programme(
        asks,
        (
            Service(
                {},
                (
                    Setting("alone", everything, driving.alone, rows(1)),
                    Setting(f"{len(asks)} streams", everything, driving.together, rows(len(asks))),
                    Setting("joins and cancels", everything, driving.joins_and_cancels, joined),
                ),
            ),
            Service(
                {"cpu.threads": 2, "scheduling.step_tokens": 17},
                (Setting("chunks of 17, 2 threads", everything, driving.together, both(threads(2), both(split(17), mixed))),),
            ),
            _preempting(asks),
            Service(CACHING, (Setting("cold, then cached", everything, driving.cold_then_cached, cached),)),
            _split(everything, most_ranks),
        ),
    )


def _preempting(asks: list[Ask]) -> Service:
    """Memory for what PREEMPTED asks reserve at first, and every reply outgrows that: at some point none can go on."""
    chosen = [number for number, ask in enumerate(asks) if ask.max_tokens > 2 * BLOCK_SIZE and len(ask.prompt_ids) < 128]
    chosen = chosen[:PREEMPTED]
    reserved = [_blocks(len(asks[number].prompt_ids) + BLOCK_SIZE) for number in chosen]
    whole = [_blocks(len(asks[number].prompt_ids) + asks[number].max_tokens) for number in chosen]
    return Service(
        {
            "cpu.threads": 2,
            "memory.kv_blocks": max(BLOCK_SIZE, sum(reserved), *whole),
            "scheduling.reserve_tokens": BLOCK_SIZE,
            "admission.seats": PREEMPTED,
        },
        (Setting(f"preempted, {len(chosen)} streams", tuple(chosen), driving.together, preempted),),
    )


def _split(asks: tuple[int, ...], most_ranks: int) -> Service:
    flags = {"devices.tensor_parallel": min(RANKS, most_ranks), "scheduling.steps_ahead": 16}
    return Service(flags, (Setting(f"{RANKS} ranks, {len(asks)} streams", asks, driving.together, on_ranks),))


def _numbers(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


# witnesses


def rows(count: int) -> Callable[[Seen], Witness]:
    """A step held the rows of so many sequences, and none of this service had before."""

    def witness(seen: Seen) -> Witness:
        before, most = seen.before["max_sequences_in_step"], seen.after["max_sequences_in_step"]
        new = before < count <= most if count > 1 else most == 1
        return Witness(new, f"{_count(most, 'sequence')} in a step")

    return witness


def one_row_a_step(seen: Seen) -> Witness:
    """No step drew two tokens."""
    steps, tokens = seen.rose("steps"), seen.rose("output_tokens")
    return Witness(steps >= tokens > 0, f"{tokens} tokens in {steps} steps")


def joined(seen: Seen) -> Witness:
    joins, cancels = seen.rose("joins_beside_running"), min(seen.rose("aborted"), seen.observed.cancelled)
    return Witness(joins > 0 and cancels > 0, f"{_count(joins, 'join')} beside running ones, {cancels} cancelled")


def split(chunk: int) -> Callable[[Seen], Witness]:
    """Prompts were cut at least as often as chunks of this size must cut them."""

    def witness(seen: Seen) -> Witness:
        least = sum(-(-len(ask.prompt_ids) // chunk) - 1 for ask in seen.asks)
        if least == 0:
            return Witness(False, f"not possible: no prompt of over {chunk} tokens fits into the context", not_served=True)
        splits = seen.rose("split_prompts")
        return Witness(splits >= least, _count(splits, "split"))

    return witness


def mixed(seen: Seen) -> Witness:
    steps = seen.rose("mixed_steps")
    return Witness(steps > 0, f"{_count(steps, 'step')} with prompts beside replies")


def preempted(seen: Seen) -> Witness:
    pauses, count = seen.rose("pauses"), seen.rose("preemptions")
    return Witness(count > 0 and pauses > 0, f"{_count(count, 'preemption')}, {_count(pauses, 'pause')}")


def cached(seen: Seen) -> Witness:
    """Both by the scheduler's count and by what clients were told."""
    count, told = seen.rose("cached_tokens"), seen.observed.cached_tokens
    return Witness(count == told > 0, f"{told:,} cached prompt tokens")


def by_itself(seen: Seen) -> Witness:
    """The worker ran several steps without the scheduler."""
    steps, handoffs = seen.rose("steps"), seen.rose("handoffs")
    return Witness(0 < handoffs < steps, f"{steps} steps in {handoffs} plans")


def threads(count: int) -> Callable[[Seen], Witness]:
    """The ops say so."""

    def witness(seen: Seen) -> Witness:
        said = _count(count, "thread")
        return Witness(said in seen.ops, said if said in seen.ops else f"ops: {seen.ops}")

    return witness


def on_ranks(seen: Seen) -> Witness:
    """The model is held by several processes."""
    if seen.ranks == 1:
        return Witness(False, "not possible: the model has one KV head, or there is one GPU", not_served=True)
    return Witness(seen.ranks == RANKS and seen.rose("steps") > 0, _count(seen.ranks, "rank"))


def both(one: Callable[[Seen], Witness], two: Callable[[Seen], Witness]) -> Callable[[Seen], Witness]:
    def witness(seen: Seen) -> Witness:
        a, b = one(seen), two(seen)
        return Witness(a.holds and b.holds, f"{a.text}, {b.text}", a.not_served or b.not_served)

    return witness
