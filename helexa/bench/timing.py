"""From the times of requests to rates and percentiles. Pure. Times are in seconds, on one clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

QUANTILES = (50, 95, 99)


@dataclass(frozen=True)
class Sample:
    """One request. `arrivals`: when its pieces of output came. `error`: why it failed, if it did."""

    sent: float
    arrivals: Sequence[float]
    ended: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Run:
    """One load, from its first request to its last answer. `client_cpu_s`: processor time of this process meanwhile."""

    samples: Sequence[Sample]
    wall_s: float
    client_cpu_s: float


@dataclass(frozen=True)
class Spread:
    """Milliseconds; NaN where nothing was measured."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread:
        """Percentiles with linear interpolation between the two nearest values."""
        values = np.array(list(seconds), np.float64) * 1e3
        if not len(values):
            return cls(*[float("nan")] * 4)
        return cls(float(values.mean()), *(float(value) for value in np.percentile(values, QUANTILES)))


@dataclass(frozen=True)
class Metrics:
    """What a run amounts to. Failed requests are counted, and are in nothing else.

    ttft: request sent to first output. itl: between two pieces of output. tpot: first to last output, by tokens after the first.
    """

    requests: int
    failed: int
    wall_s: float
    client_cpu_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tok_s: float
    requests_s: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread


def measure(run: Run) -> Metrics:
    good = [sample for sample in run.samples if not sample.error]
    output = sum(sample.output_tokens for sample in good)
    wall = max(run.wall_s, 1e-9)
    return Metrics(
        requests=len(run.samples),
        failed=len(run.samples) - len(good),
        wall_s=run.wall_s,
        client_cpu_s=run.client_cpu_s,
        prompt_tokens=sum(sample.prompt_tokens for sample in good),
        cached_tokens=sum(sample.cached_tokens for sample in good),
        output_tokens=output,
        output_tok_s=output / wall,
        requests_s=len(good) / wall,
        ttft_ms=Spread.of(sample.arrivals[0] - sample.sent for sample in good if sample.arrivals),
        tpot_ms=Spread.of(tpot for sample in good if (tpot := time_per_token(sample)) is not None),
        itl_ms=Spread.of(later - earlier for sample in good for earlier, later in pairwise(sample.arrivals)),
    )


def time_per_token(sample: Sample) -> float | None:
    """Seconds a token after the first; None where there is no second."""
    if sample.output_tokens < 2 or len(sample.arrivals) < 2:
        return None
    return (sample.arrivals[-1] - sample.arrivals[0]) / (sample.output_tokens - 1)


def numbers(metrics: Metrics) -> dict[str, float]:
    """What two servers are compared by: throughput, and each latency's percentiles."""
    found = {"output tok/s": metrics.output_tok_s}
    for name, spread in (("TTFT", metrics.ttft_ms), ("TPOT", metrics.tpot_ms), ("ITL", metrics.itl_ms)):
        found |= {f"{name} p{q} ms": float(getattr(spread, f"p{q}")) for q in QUANTILES}
    return found


@dataclass(frozen=True)
class Ratio:
    """One number of two servers over pairs of runs: medians, and median, least and most of the pairs' ratios."""

    name: str
    first: float
    second: float
    median: float
    least: float
    most: float


def ratios(pairs: Sequence[tuple[Metrics, Metrics]]) -> list[Ratio]:
    """first / second, pair by pair, so that what slows the machine for a while slows both sides of a ratio."""
    tables = [(numbers(first), numbers(second)) for first, second in pairs]
    found = []
    for name in tables[0][0]:
        firsts, seconds = [first[name] for first, _ in tables], [second[name] for _, second in tables]
        each = [a / b if b else float("nan") for a, b in zip(firsts, seconds, strict=True)]
        found.append(
            Ratio(name, statistics.median(firsts), statistics.median(seconds), statistics.median(each), min(each), max(each))
        )
    return found


def medians(points: Iterable[tuple[float, Metrics]]) -> list[tuple[float, Metrics]]:
    """One run a level: the one with the median throughput of that level's runs."""
    levels: dict[float, list[Metrics]] = {}
    for level, metrics in points:
        levels.setdefault(level, []).append(metrics)
    ordered = {level: sorted(runs, key=lambda run: run.output_tok_s) for level, runs in sorted(levels.items())}
    return [(level, runs[len(runs) // 2]) for level, runs in ordered.items()]


def document(metrics: Metrics) -> dict[str, Any]:
    """As JSON carries it: NaN becomes null."""

    def spread(item: Spread) -> dict[str, float | None]:
        return {name: None if value != value else round(value, 3) for name, value in vars(item).items()}

    return {
        name: spread(value) if isinstance(value, Spread) else round(value, 3) if isinstance(value, float) else value
        for name, value in vars(metrics).items()
    }
