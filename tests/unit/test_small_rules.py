"""Small pure rules: restarts, the memory plan, prices and the prefill bound."""

from __future__ import annotations

import pytest

from helexa.catalogue.memory_plan import plan_memory
from helexa.errors import StartError
from helexa.restarts import DELAYS_S, WINDOW_S, Restarts
from helexa.scheduler.prices import PriceTable, Shape, StepPrices


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


def test_attention_is_priced_from_the_steps_themselves():
    """A prompt far into its context costs more a token than the table says: fewer may join, and short steps teach nothing."""
    prices = StepPrices(PriceTable([(1, 1.0), (512, 512.0)]), logit_row_ms=0.5)
    decoding = Shape(8, 8, 8 * 100)
    near = prices.prompt_tokens_beside(decoding, 0, 512, 0.0)
    prices.learn(Shape(8, 8, 100), 1e6)
    assert prices.prompt_tokens_beside(decoding, 4000, 512, 0.0) == near
    for _ in range(50):
        prices.learn(Shape(16, 9, 8 * 100 + 8 * 4000), 16 + 4.5 + 0.001 * (8 * 100 + 8 * 4000))
    assert prices.position_ms == pytest.approx(0.001)
    far = prices.prompt_tokens_beside(decoding, 4000, 512, 0.0)
    assert far < near / 2
    assert prices.predict(decoding.plus(4000, far, True)) <= 2 * prices.predict(decoding)
