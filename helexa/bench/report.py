"""Runs as tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helexa.bench.timing import Metrics, Ratio, Spread

LAYOUT = "{:<15} {:>8} {:>12} {:>23} {:>23} {:>23}  {:>15}"
HEAD = LAYOUT.format(
    "load", "requests", "output tok/s", "TTFT ms p50/95/99", "TPOT ms p50/95/99", "ITL ms p50/95/99", "client CPU"
)
RATIO_LAYOUT = "  {:<14} {:>12} {:>12} {:>8}  {}"


def level_name(level: Mapping[str, float]) -> str:
    """`concurrency 4`, `rate 2.5`."""
    return ", ".join(f"{name} {value:g}" for name, value in level.items())


def line(level: Mapping[str, float], metrics: Metrics) -> str:
    failed = f" ({metrics.failed} failed)" if metrics.failed else ""
    cpu = f"{metrics.client_cpu_s:.2f} of {metrics.wall_s:.1f} s"
    spreads = [_spread(item) for item in (metrics.ttft_ms, metrics.tpot_ms, metrics.itl_ms)]
    return LAYOUT.format(level_name(level), metrics.requests, f"{metrics.output_tok_s:,.1f}", *spreads, cpu) + failed


def notes(metrics: Metrics, output_tokens: int) -> list[str]:
    """What a reader must know to believe the numbers."""
    found = []
    good = metrics.requests - metrics.failed
    if good and metrics.output_tokens != good * output_tokens:
        found.append(f"replies had {metrics.output_tokens / good:.1f} tokens on average, not {output_tokens}")
    if metrics.cached_tokens:
        found.append(f"{metrics.cached_tokens:,} of {metrics.prompt_tokens:,} prompt tokens were cached")
    return found


def comparison(level: Mapping[str, float], first: str, second: str, pairs: int, ratios: Sequence[Ratio]) -> str:
    """A table of medians and ratios: above 1, the first is faster by throughput, and slower by a latency."""
    lines = [
        f"{level_name(level)}: A = {first}, B = {second}; medians of {pairs} interleaved pairs",
        RATIO_LAYOUT.format("", "A", "B", "A / B", "least .. most of the pairs"),
    ]
    lines += [
        RATIO_LAYOUT.format(
            item.name,
            f"{item.first:,.1f}",
            f"{item.second:,.1f}",
            f"{item.median:.2f}",
            f"{item.least:.2f} .. {item.most:.2f}",
        )
        for item in ratios
    ]
    return "\n".join(lines)


def _spread(item: Spread) -> str:
    """NaN: nothing was measured."""
    return "-" if item.p50 != item.p50 else " / ".join(_milliseconds(value) for value in (item.p50, item.p95, item.p99))


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
