"""Quantisations as a picture, by matplotlib, which is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helexa.errors import StartError
from helexa.quality.quantisations import Measured


def draw(path: Path, title: str, rows: Sequence[Measured]) -> None:
    """KL divergence from float32, and perplexity, over size. Writes a PNG; matplotlib must be there. StartError."""
    figure_module, canvas_module = (importlib.import_module(f"matplotlib.{name}") for name in ("figure", "backends.backend_agg"))
    figure: Any = figure_module.Figure(figsize=(10, 4.5), layout="constrained")
    canvas_module.FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    for axes, word, values in (
        (left, "mean KL divergence from float32 (nats)", [row.compared.kl_mean for row in rows]),
        (right, "perplexity", [row.compared.perplexity for row in rows]),
    ):
        sizes = [row.bytes / 1e6 for row in rows]
        axes.scatter(sizes, values)
        for row, x, y in zip(rows, sizes, values, strict=True):
            axes.annotate(row.name, (x, y), textcoords="offset points", xytext=(4, 4))
        axes.set_xlabel("weights (MB)")
        axes.set_ylabel(word)
        axes.grid(alpha=0.3)
    if min(row.compared.kl_mean for row in rows) > 0:
        left.set_yscale("log")
    right.axhline(rows[0].compared.perplexity_float32, linestyle="--", linewidth=1)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise StartError(f"{path} cannot be written ({error.strerror})") from None
