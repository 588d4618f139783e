"""`helexa quant-report`: what each quantisation of a model costs in quality, and saves in size and time."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from helexa import catalogue
from helexa.bench import plot as plots
from helexa.catalogue.choice import size
from helexa.config import Config
from helexa.errors import StartError
from helexa.formats.checkpoint import model_path
from helexa.quality import plot
from helexa.quality.quantisations import Measured, measured, possible
from helexa.quality.texts import manual
from helexa.web.model_text import read_model_text
from workers import machine

LEAST_TOKENS = 100


class Options(NamedTuple):
    """`quants` empty: all that are possible; `text` None: the Python manual."""

    text: Path | None
    tokens: int
    quants: list[str]
    png: Path | None
    as_json: bool


def quant_report(config: Config, options: Options, out: TextIO, errors: TextIO) -> int:
    """Prints the table, or JSON; progress goes to `errors`. Raises StartError, ModelFileError or ModelSourceError."""
    if options.png is not None:
        plots.require()
    source = catalogue.parse(config.model.source, config)
    found = catalogue.find(source, config) or catalogue.fetch(source, config, lambda line: print(line, file=errors))
    ids = _ids(options, model_path(found.files))
    quants = possible(found.files)
    wrong = [quant for quant in options.quants if quant not in quants]
    if wrong:
        why = f"possible are {', '.join(quants)}" if quants else "its weights are quantised already"
        raise StartError(f"{source.given} cannot be quantised to {', '.join(wrong)}: {why}; change --quants")
    threads = machine.threads(Path("/"), os.sched_getaffinity(0), 0 if config.cpu.threads == "auto" else config.cpu.threads)
    wanted = options.quants or quants
    rows = list(
        measured(found.files, wanted, ids, config.cpu.ops, threads.count, lambda line: print(line, file=errors, flush=True))
    )
    if options.as_json:
        documents = [{"name": row.name, "bytes": row.bytes, **asdict(row.compared)} for row in rows]
        print(json.dumps({"model": source.given, "rows": documents}, indent=1), file=out)
    else:
        print("\n".join(table(source.given, rows)), file=out)
    if options.png is not None:
        plot.draw(options.png, f"{source.given}, {len(ids):,} tokens", rows)
    return 0


def table(model: str, rows: Sequence[Measured]) -> list[str]:
    """The lines that people see. Speeds are of steps of 50 tokens, on this machine."""
    first = rows[0].compared
    head = ("WEIGHTS", "SIZE", "TOKENS/S", "PERPLEXITY", "CHANGE", "KL MEAN", "KL P99", "SAME BEST")
    cells = [
        head,
        ("float32", "", f"{first.tokens_per_second_float32:.0f}", f"{first.perplexity_float32:.3f}", "", "", "", ""),
        *(_cells(row) for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [f"{model}: {first.tokens:,} tokens, against float32 on the reference ops", *lines]


def _cells(row: Measured) -> tuple[str, ...]:
    own = row.compared
    return (
        row.name,
        size(row.bytes),
        f"{own.tokens_per_second:.0f}",
        f"{own.perplexity:.3f}",
        f"{own.perplexity_change:+.2%}",
        f"{own.kl_mean:.2e}",
        f"{own.kl_p99:.2e}",
        f"{own.best_token_agrees:.1%}",
    )


def _ids(options: Options, model: Path) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The text's tokens, as many as are wanted."""
    if options.text is None:
        text = manual()
    else:
        try:
            text = options.text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{options.text}: cannot be read as text ({error}); name a UTF-8 file") from None
    ids = read_model_text(model).tokenizer.encode(text)[: options.tokens]
    if len(ids) < LEAST_TOKENS:
        raise StartError(
            f"the text has {len(ids)} tokens, at least {LEAST_TOKENS} are needed; choose a longer one, or more --tokens"
        )
    return np.array(ids, np.int32)
