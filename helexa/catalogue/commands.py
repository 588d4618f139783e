"""`helexa pull`, `list`, `show` and `rm`: each writes to `out` and returns the exit code; errors are for the CLI to show."""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from typing import Any, TextIO

from helexa import catalogue
from helexa.catalogue.choice import size
from helexa.catalogue.model_files import ModelFiles
from helexa.catalogue.model_shape import read_outline
from helexa.catalogue.progress import Progress
from helexa.config import Config
from helexa.errors import ModelSourceError
from helexa.formats.checkpoint import model_path, open_checkpoint
from helexa.formats.hf_vocabulary import read_tokenizer_files
from helexa.text.template_files import folder_templates, gguf_templates

BAR_CELLS = 30


def pull(name: str, config: Config, out: TextIO) -> int:
    """Fetches a model where it is not at hand, and writes where it lies."""
    terminal = out.isatty()
    bar = _bar(name, out) if terminal else None

    def report(line: str) -> None:
        print(f"\r\033[K{line}" if terminal else line, file=out, flush=True)

    files = catalogue.fetch(catalogue.parse(name, config), config, report, bar)
    report(f"{name} ({size(files.bytes)}): {model_path(files.files)}")
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
    facts = model_facts(name, files)
    if as_json:
        print(json.dumps(facts, indent=1), file=out)
        return 0
    for key, value in facts.items():
        print(f"{key.replace('_', ' '):<14} {_for_people(key, value)}", file=out)
    return 0


def model_facts(name: str, files: ModelFiles) -> dict[str, Any]:
    """What `show` prints. Raises ModelFileError."""
    path = model_path(files.files)
    with closing(open_checkpoint(path)) as file:
        architecture, layers, context = read_outline(file)
        gguf = file.format == "gguf"
        folder = path if path.is_dir() else path.parent
        templates = gguf_templates(file.metadata) if gguf else folder_templates(read_tokenizer_files(folder))
        kind = " ".join(str(file.metadata.get(f"tokenizer.ggml.{key}", "")) for key in ("model", "pre")).strip()
        return {
            "name": name,
            "source": files.source,
            "path": str(path),
            "bytes": files.bytes,
            "licence": files.licence or (file.get("general.license", str, "") if gguf else "") or "not stated",
            "architecture": architecture,
            "title": file.get("general.name", str, "") if gguf else "",
            "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            "context": context,
            "layers": layers,
            "tensor_types": dict(Counter(tensor.type for tensor in file.tensors.values()).most_common()),
            "tokenizer": (kind or "none") if gguf else "tokenizer.json",
            "chat_template": bool(templates),
        }


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
