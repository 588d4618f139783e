"""The programme and its witnesses."""

from __future__ import annotations

import dataclasses

import pytest

from helexa import config as configuration
from helexa.scheduler.block_pool import BLOCK_SIZE, blocks_for
from helexa.scheduler.counters import Counters
from helexa.verify import settings
from helexa.verify.asks import make_asks
from helexa.verify.driving import Observed
from helexa.verify.settings import Seen

ASKS = make_asks(64, 259, 1024, 24)
PROGRAMMES = {"full": settings.full(ASKS, 2), "quick": settings.quick(make_asks(8, 259, 1024, 24), 3)}


def seen(before: dict[str, int] | None = None, after: dict[str, int] | None = None, **changes: object) -> Seen:
    start = dataclasses.asdict(Counters())
    values: dict[str, object] = {"ops": "native (2 threads)", "asks": ASKS[:8], "observed": Observed([])}
    values |= {"before": {**start, **(before or {})}, "after": {**start, **(after or {})}, **changes}
    return Seen(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PROGRAMMES)
def test_the_programme_can_be_run(name):
    """Flags are known keys with fitting values, asks exist, and the baseline holds every ask."""
    programme = PROGRAMMES[name]
    everything = set(range(len(programme.asks)))
    assert set(programme.services[0].settings[0].asks) == everything
    for service in programme.services:
        configuration.load(None, {**settings.COMMON, **service.flags})
        assert all(set(setting.asks) <= everything for setting in service.settings)
    names = [setting.name for service in programme.services for setting in service.settings]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", PROGRAMMES)
def test_too_few_blocks_are_still_enough_for_each(name):
    """In the preempted setting every ask gets its seat and each fits by itself, and each outgrows what it reserved at first."""
    programme = PROGRAMMES[name]
    service = next(item for item in programme.services if "memory.kv_blocks" in item.flags)
    chosen = [programme.asks[number] for number in service.settings[0].asks]
    blocks = service.flags["memory.kv_blocks"]
    reserve = service.flags["scheduling.reserve_tokens"]
    reserved = [blocks_for(len(ask.prompt_ids) + reserve) for ask in chosen]
    whole = [blocks_for(len(ask.prompt_ids) + ask.max_tokens) for ask in chosen]
    assert settings.BLOCK_SIZE == BLOCK_SIZE and len(chosen) >= 3
    assert sum(reserved) <= blocks < sum(whole) and max(whole) <= blocks
    assert all(first < last for first, last in zip(reserved, whole, strict=True))


@pytest.mark.parametrize(
    ("witness", "before", "after", "holds"),
    [
        (settings.rows(8), {"max_sequences_in_step": 2}, {"max_sequences_in_step": 8}, True),
        (settings.rows(8), {"max_sequences_in_step": 2}, {"max_sequences_in_step": 7}, False),
        (settings.rows(8), {"max_sequences_in_step": 9}, {"max_sequences_in_step": 9}, False),
        (settings.rows(1), {}, {"max_sequences_in_step": 1}, True),
        (settings.rows(1), {}, {"max_sequences_in_step": 2}, False),
        (settings.rows(1), {}, {}, False),
        (settings.one_row_a_step, {"steps": 5}, {"steps": 9, "output_tokens": 4}, True),
        (settings.one_row_a_step, {"steps": 5}, {"steps": 9, "output_tokens": 5}, False),
        (settings.one_row_a_step, {}, {}, False),
        (settings.mixed, {"mixed_steps": 3}, {"mixed_steps": 4}, True),
        (settings.mixed, {"mixed_steps": 3}, {"mixed_steps": 3}, False),
        (settings.preempted, {"preemptions": 1}, {"preemptions": 2, "pauses": 1}, True),
        (settings.preempted, {"preemptions": 1}, {"preemptions": 1, "pauses": 1}, False),
        (settings.preempted, {}, {"preemptions": 1}, False),
        (settings.by_itself, {}, {"steps": 9, "handoffs": 2}, True),
        (settings.by_itself, {}, {"steps": 9, "handoffs": 9}, False),
        (settings.threads(2), {}, {}, True),
        (settings.threads(1), {}, {}, False),
        (settings.both(settings.threads(2), settings.mixed), {}, {}, False),
        (settings.both(settings.threads(2), settings.mixed), {}, {"mixed_steps": 1}, True),
        (settings.joined, {}, {"joins_beside_running": 1, "aborted": 1}, False),
    ],
)
def test_a_witness_holds_only_by_what_was_counted_since(witness, before, after, holds):
    assert witness(seen(before, after)).holds is holds


def test_joins_need_a_cancel_that_came_while_it_ran():
    """Both the service's count and the client's."""
    counted = {"joins_beside_running": 3, "aborted": 2}
    assert settings.joined(seen({}, counted, observed=Observed([], 0, 1))).holds
    assert not settings.joined(seen({}, {**counted, "aborted": 0}, observed=Observed([], 0, 1))).holds


def test_splits_are_counted_against_what_the_chunk_must_cause():
    """One split less than the prompts' lengths require is no witness; with no prompt longer than the chunk there can be none."""
    needed = sum((len(ask.prompt_ids) - 1) // 17 for ask in ASKS[:8])
    assert settings.split(17)(seen({}, {"split_prompts": needed})).holds
    assert not settings.split(17)(seen({}, {"split_prompts": needed - 1})).holds
    assert settings.split(512)(seen({}, {"split_prompts": 5})).not_served
    assert settings.split(512)(seen({}, {"split_prompts": 1}, asks=ASKS[-1:])).holds


def test_cached_tokens_are_counted_on_both_sides():
    """What clients were told and what the scheduler counted, and not none."""
    assert settings.cached(seen({}, {"cached_tokens": 32}, observed=Observed([], 32))).holds
    assert not settings.cached(seen({}, {"cached_tokens": 16}, observed=Observed([], 32))).holds
    assert not settings.cached(seen()).holds


def test_ranks_are_those_that_the_model_has_heads_for():
    """Two, where they are possible; else the setting is run on one, and is not served."""
    flags = [service.flags.get("devices.tensor_parallel") for service in settings.full(ASKS, 8).services]
    assert flags[-1] == 2 and set(flags[:-1]) == {None}
    assert settings.full(ASKS, 1).services[-1].flags["devices.tensor_parallel"] == 1
    witness = settings.on_ranks(seen(after={"steps": 9}, ranks=2))
    assert (witness.holds, witness.text) == (True, "2 ranks")
    assert settings.on_ranks(seen(after={"steps": 9}, ranks=1)).not_served
