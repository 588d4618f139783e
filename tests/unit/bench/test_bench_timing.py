"""Rates and percentiles from times."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from helexa.bench import timing
from helexa.bench.timing import Metrics, Run, Sample, Spread


def sample(sent: float, *arrivals: float, tokens: int | None = None, error: str = "") -> Sample:
    output = len(arrivals) if tokens is None else tokens
    return Sample(sent, arrivals, arrivals[-1] if arrivals else sent, 10, 4, output, error)


def metrics(rate: float) -> Metrics:
    """A run of so many output tokens a second, whose latencies are its inverse."""
    step = 1 / rate
    return timing.measure(Run([sample(0.0, step, 2 * step, 3 * step)], 3 * step, 0.0))


def test_percentiles_interpolate_between_the_nearest_two():
    """Of 1, 2, 3, 4, 5 ms: the median is one of them, the 95th lies between the last two."""
    spread = Spread.of([0.005, 0.001, 0.002, 0.003, 0.004])
    assert (spread.mean, spread.p50) == pytest.approx((3, 3))
    assert (spread.p95, spread.p99) == pytest.approx((4.8, 4.96))


def test_one_value_is_every_percentile_and_none_is_not_a_number():
    assert vars(Spread.of([0.25])) == {"mean": 250, "p50": 250, "p95": 250, "p99": 250}
    assert all(math.isnan(value) for value in vars(Spread.of([])).values())


def test_latencies_of_a_request():
    """Sent at 1.0, output at 1.5, 1.6 and 2.0, five tokens."""
    found = timing.measure(Run([sample(1.0, 1.5, 1.6, 2.0, tokens=5)], 2.0, 0.5))
    assert found.ttft_ms.p50 == pytest.approx(500)
    assert found.tpot_ms.p50 == pytest.approx(500 / 4)
    assert found.itl_ms.mean == pytest.approx(250) and found.itl_ms.p50 == pytest.approx(250)
    assert (found.output_tokens, found.output_tok_s, found.requests_s) == (5, 2.5, 0.5)
    assert (found.prompt_tokens, found.cached_tokens, found.client_cpu_s) == (10, 4, 0.5)


def test_failed_requests_are_counted_and_measured_nowhere():
    found = timing.measure(Run([sample(0.0, 1.0, 2.0), sample(0.0, 9.0, 99.0, error="cut")], 4.0, 0.0))
    assert (found.requests, found.failed, found.output_tokens, found.ttft_ms.p99) == (2, 1, 2, 1000)


def test_a_reply_of_one_token_has_no_time_per_token():
    assert timing.time_per_token(sample(0.0, 1.0)) is None
    assert math.isnan(timing.measure(Run([sample(0.0, 1.0)], 1.0, 0.0)).tpot_ms.p50)


def test_a_request_without_output_counts_but_has_no_latency():
    found = timing.measure(Run([sample(0.0)], 1.0, 0.0))
    assert (found.requests, found.failed, found.output_tok_s) == (1, 0, 0) and math.isnan(found.ttft_ms.p50)


def test_ratios_are_taken_pair_by_pair():
    """The machine halves its speed for the second pair: the ratio does not notice, the medians do."""
    ratios = timing.ratios([(metrics(200), metrics(100)), (metrics(100), metrics(50)), (metrics(300), metrics(100))])
    speed = ratios[0]
    assert speed.name == "output tok/s"
    assert (speed.first, speed.second) == pytest.approx((200, 100))
    assert (speed.median, speed.least, speed.most) == pytest.approx((2, 2, 3))
    latency = next(item for item in ratios if item.name == "TTFT p50 ms")
    assert (latency.median, latency.least) == pytest.approx((1 / 2, 1 / 3))
    assert len(ratios) == 10


def test_the_document_is_json_without_nan():
    made = timing.document(timing.measure(Run([sample(0.0, 1.0)], 1.0, 0.0)))
    assert json.loads(json.dumps(made, allow_nan=False))["tpot_ms"] == {"mean": None, "p50": None, "p95": None, "p99": None}
    assert set(made) == {field.name for field in dataclasses.fields(Metrics)}


def test_a_picture_shows_the_run_of_median_throughput():
    points = [(4.0, metrics(1)), (1.0, metrics(30)), (1.0, metrics(10)), (1.0, metrics(20))]
    found = timing.medians(points)
    assert [(level, round(run.output_tok_s)) for level, run in found] == [(1.0, 20), (4.0, 1)]
