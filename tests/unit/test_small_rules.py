"""Small pure rules: restarts, the memory plan, prices and the prefill bound."""

from __future__ import annotations

import pytest

from helexa.catalogue.memory_plan import plan_memory
from helexa.errors import StartError
from helexa.restarts import DELAYS_S, WINDOW_S, Restarts
from helexa.scheduler.prices import PriceTable, Shape, StepPrices, UnitPrices


def test_restarts_back_off_then_give_up():
    """Growing delays within the window, then None; an old death is forgotten."""
    restarts = Restarts()
    assert [restarts.died(float(second)) for second in range(6)] == [*DELAYS_S, None]
    assert restarts.died(WINDOW_S + 100) == DELAYS_S[0]


@pytest.mark.parametrize(
    ("free", "seats", "batching", "expected_blocks", "expected_seats"),
    [
        (1000 * 100, "auto", True, 1000, 3),  # 256 blocks set aside a seat
        (1000 * 100, "auto", False, 512, 1),
        (1000 * 100, 2, True, 1000, 2),
        (100 * 100, "auto", True, 100, 1),  # fewer than two fit: one at a time
        (10**6 * 100, "auto", True, 64 * 512, 64),  # no more than the seats can fill
    ],
)
def test_memory_becomes_blocks_and_seats(free, seats, batching, expected_blocks, expected_seats):
    """100 bytes a block, a context of 8,192 tokens."""
    plan = plan_memory(free, 100, 8192, seats, batching, "a test")
    assert (plan.blocks, plan.seats) == (expected_blocks, expected_seats)


def test_a_cache_too_small_to_serve_is_refused_with_the_remedies():
    """Fewer than 256 tokens: the message names what bound it and what to do."""
    with pytest.raises(StartError, match=r"bound by the cgroup.*memory\.limit_mib"):
        plan_memory(100 * 10, 100, 8192, "auto", True, "the cgroup's memory limit")


def test_prices_are_linear_between_points_and_never_fall():
    """A dip in the measured table is not believed."""
    prices = PriceTable([(1, 4.0), (8, 14.0), (16, 12.0), (32, 46.0)])
    assert prices.milliseconds(1) == 4.0 and prices.milliseconds(8) == 14.0 and prices.milliseconds(16) == 14.0
    assert prices.milliseconds(24) == 30.0 and prices.milliseconds(64) == 110.0


@pytest.mark.parametrize(
    ("decoding", "min_step_ms", "expected"),
    [(0, 25.0, 512), (8, 0.0, 8), (8, 25.0, 17), (1, 0.0, 1), (512, 0.0, 1)],
)
def test_prompt_tokens_that_may_join(decoding, min_step_ms, expected):
    """At 1 ms a row: twice the decode-only time, or min_step_ms; alone the whole step; never none."""
    prices = StepPrices(PriceTable([(1, 1.0), (512, 512.0)]))
    assert prices.prompt_tokens_beside(Shape(decoding, decoding, 0), 0, 512, min_step_ms) == expected


def test_attention_is_priced_by_position():
    """A prompt far into its context costs more a token than the table says: fewer may join."""
    units = UnitPrices(logit_row=0.5, decode_position=0.002, prompt_position=0.001)
    prices = StepPrices(PriceTable([(1, 1.0), (512, 512.0)]), units)
    decoding = Shape(8, 8, 8 * 100)
    assert prices.predict(decoding) == pytest.approx(8 + 4 + 1.6)
    near = prices.prompt_tokens_beside(decoding, 0, 512, 0.0)
    far = prices.prompt_tokens_beside(decoding, 4000, 512, 0.0)
    assert 1 < far < near / 2
    assert prices.predict(decoding.plus_prompt(4000, far)) <= 2 * prices.predict(decoding)


def test_what_every_step_costs_on_top_is_learned_from_those_that_decode():
    """It is learned slowly upward and quickly downward, since noise only ever adds; a step with a prompt teaches nothing."""
    prices = StepPrices(PriceTable([(1, 1.0), (512, 512.0)]))
    for _ in range(500):
        prices.learn(Shape(8, 8, 800), 10.0)
        prices.learn(Shape(16, 9, 800, 9000), 1e6)
    assert prices.predict(Shape(8)) == pytest.approx(10.0, abs=0.01)
    prices.learn(Shape(8, 8, 800), 1e6)
    spike = prices.overhead_ms
    for _ in range(30):
        prices.learn(Shape(8, 8, 800), 9.0)
    assert spike > 1e3 and prices.overhead_ms < spike / 100
