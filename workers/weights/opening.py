"""Opens the model that a worker is told to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint, model_path, open_checkpoint
from helexa.formats.quantise import QUANTS
from workers.weights.quantised import QuantisedCheckpoint

LINE_WEIGHTS = 1 << 28  # quantised between two lines of a report, which is a second or two


@dataclass(frozen=True)
class Quantising:
    """`quant` empty: no. `cache` empty: what is quantised is kept nowhere; `keeps` False: it is only looked for there."""

    quant: str = ""
    cache: str = ""
    cache_bytes: int = 0
    keeps: bool = True


def open_model(
    files: Mapping[str, str], quantising: Quantising, threads: int, report: Callable[[str], None]
) -> Checkpoint | QuantisedCheckpoint:
    """The model's checkpoint, quantised as it is read where that is asked for. `report` takes lines of progress. ModelFileError."""
    checkpoint = open_checkpoint(model_path(files))
    quant = quantising.quant
    if not quant:
        return checkpoint
    if quant not in QUANTS:
        raise ModelFileError(f"weights cannot be quantised to {quant}; possible: {', '.join(QUANTS)}")
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done // LINE_WEIGHTS > told:
            told = done // LINE_WEIGHTS
            report(f"quantising to {quant}: {done / total:.0%}")

    cache = Path(quantising.cache) if quantising.cache else None
    opened = QuantisedCheckpoint(checkpoint, quant, threads, progress, cache, quantising.cache_bytes, quantising.keeps)
    if opened.from_cache:
        report(f"weights in {quant} are on disk from an earlier start")
    return opened
