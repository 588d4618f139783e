"""`helexa pull`, `list`, `show` and `rm`: each writes to `out` and returns the exit code; errors are for the CLI to show."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from typing import TextIO

from helexa import catalogue
from helexa.catalogue.choice import size
from helexa.catalogue.progress import Progress
from helexa.config import Config
from helexa.errors import ModelSourceError
from helexa.formats.gguf import GGUFFile

BAR_CELLS = 30


def pull(name: str, config: Config, out: TextIO) -> int:
    """Fetches a model where it is not at hand, and writes where it lies."""
    terminal = out.isatty()
    bar = _bar(name, out) if terminal else None

    def report(line: str) -> None:
        print(f"\r\033[K{line}" if terminal else line, file=out, flush=True)

    files = catalogue.fetch(catalogue.parse(name, config), config, report, bar)
    report(f"{name} ({size(files.bytes)}): {files.files['gguf']}")
    return 0


def list_models(config: Config, out: TextIO, as_json: bool = False) -> int:
    """The models in the cache: a table, or JSON."""
    models = catalogue.cached(config)
    if as_json:
        print(json.dumps([asdict(model) for model in models], indent=1), file=out)
        return 0
    if not models:
        print(f"no models in the cache ({config.paths.cache}); `helexa pull smollm2` fetches one", file=out)
        return 0
    rows = [("NAME", "SIZE", "LICENCE", "SOURCE", "PATH")]
    rows += [(model.name, size(model.bytes), model.licence or "not stated", model.source, model.path) for model in models]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=out)
    return 0


def show(name: str, config: Config, out: TextIO, as_json: bool = False) -> int:
    """What a model at hand is, from its file."""
    source = catalogue.parse(name, config)
    files = catalogue.find(source, config)
    if files is None:
        raise ModelSourceError(f"{name} ({source}) is not at hand; `helexa pull {name}` fetches it")
    with GGUFFile.open(files.files["gguf"]) as file:
        architecture = file.get("general.architecture", str)
        facts = {
            "name": name,
            "source": files.source,
            "path": files.files["gguf"],
            "bytes": files.bytes,
            "licence": files.licence or file.get("general.license", str, "not stated"),
            "architecture": architecture,
            "title": file.get("general.name", str, ""),
            "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            "context": file.get(f"{architecture}.context_length", int, 0),
            "layers": file.get(f"{architecture}.block_count", int, 0),
            "tensor_types": dict(Counter(tensor.type for tensor in file.tensors.values()).most_common()),
            "tokenizer": f"{file.get('tokenizer.ggml.model', str, 'none')} {file.get('tokenizer.ggml.pre', str, '')}".strip(),
            "chat_template": "tokenizer.chat_template" in file.metadata,
        }
    if as_json:
        print(json.dumps(facts, indent=1), file=out)
        return 0
    for key, value in facts.items():
        print(f"{key.replace('_', ' '):<14} {_for_people(key, value)}", file=out)
    return 0


def rm(name: str, config: Config, out: TextIO) -> int:
    """Removes a model from the cache."""
    freed = catalogue.remove(catalogue.parse(name, config), config)
    print(f"removed {name}: {size(freed)} freed", file=out)
    return 0


def _for_people(key: str, value: object) -> str:
    if key == "bytes" and isinstance(value, int):
        return f"{size(value)} ({value:,})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bar(name: str, out: TextIO) -> Progress:
    """A bar where the whole is known, else the bytes that have come; on one line of a terminal."""

    def progress(count: int, total: int) -> None:
        if total:
            filled = min(count * BAR_CELLS // total, BAR_CELLS)
            line = f"{name} [{'#' * filled}{'.' * (BAR_CELLS - filled)}] {size(count)} of {size(total)}"
        else:
            line = f"{name} {size(count)}"
        print(f"\r\033[K{line}", end="", file=out, flush=True)

    return progress
