"""Runs as a picture, by matplotlib, which is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helexa.bench.timing import Metrics, Spread
from helexa.errors import StartError

PANELS = ("TTFT", "TPOT", "ITL")


def require() -> None:
    """Raises StartError where there is no matplotlib: better before a run than after it."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise StartError("--png needs matplotlib, which is not installed: pip install 'helexa[bench]'") from None


def draw(path: Path, runs: Mapping[str, Sequence[tuple[float, Metrics]]], axis: str) -> None:
    """Throughput and latencies by level (`axis`: concurrency or rate), one colour a target. Raises StartError."""
    require()
    figure_module, canvas_module = (importlib.import_module(f"matplotlib.{name}") for name in ("figure", "backends.backend_agg"))
    figure: Any = figure_module.Figure(figsize=(11, 8), layout="constrained")
    canvas_module.FigureCanvasAgg(figure)
    panels = list(figure.subplots(2, 2).flat)
    for number, (label, points) in enumerate(runs.items()):
        colour = f"C{number}"
        levels = [level for level, _ in points]
        panels[0].plot(levels, [metrics.output_tok_s for _, metrics in points], "o-", color=colour, label=label)
        for panel, name in zip(panels[1:], PANELS, strict=True):
            spreads: list[Spread] = [getattr(metrics, f"{name.lower()}_ms") for _, metrics in points]
            for quantile, style in (("p50", "o-"), ("p95", "s--"), ("p99", "^:")):
                values = [getattr(spread, quantile) for spread in spreads]
                panel.plot(levels, values, style, color=colour, label=f"{label} {quantile}", markersize=4)
    panels[0].set_ylabel("output tok/s")
    for panel, name in zip(panels[1:], PANELS, strict=True):
        panel.set_ylabel(f"{name} ms")
    for panel in panels:
        panel.set_xlabel(axis)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small")
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise StartError(f"{path} cannot be written ({error.strerror})") from None
