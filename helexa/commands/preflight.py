"""`helexa preflight`: whether a model can be served on this machine, before anything is loaded."""

from __future__ import annotations

import json
from typing import TextIO

from helexa import catalogue
from helexa.catalogue.choice import size
from helexa.catalogue.preflight import Passed, PreflightError, Wishes, check
from helexa.catalogue.room import memory_limit
from helexa.config import Config
from helexa.formats.checkpoint import model_path
from workers.models.registry import ARCHITECTURES

SERVABLE, REFUSED = 0, 1


def preflight(config: Config, out: TextIO, errors: TextIO, as_json: bool = False, ranks: int | None = None) -> int:
    """Fetches the model where it is not at hand (which is told to `errors`), then writes what was found. Returns SERVABLE or
    REFUSED. `ranks` None: as configured."""
    source = catalogue.parse(config.model.source, config)
    files = catalogue.find(source, config) or catalogue.fetch(source, config, lambda line: print(line, file=errors))
    limit = memory_limit(config)
    try:
        passed = check(source.given, model_path(files.files), wishes(config, ranks), limit.bytes, ARCHITECTURES)
    except PreflightError as error:
        print(json.dumps({"ok": False, **error.document()}) if as_json else "\n".join(refusal(error)), file=out)
        return REFUSED
    print(json.dumps({"ok": True, **passed.document()}) if as_json else "\n".join(lines(passed, limit.note)), file=out)
    return SERVABLE


def wishes(config: Config, ranks: int | None = None) -> Wishes:
    """How the configured model is to be served."""
    model = config.model
    return Wishes(
        model.context,
        model.quant,
        ranks or config.devices.tensor_parallel,
        config.memory.kv_blocks,
        config.cpu.ops == "reference",
    )


def refusal(error: PreflightError) -> list[str]:
    return [
        f"{error.model_id}: cannot be served",
        f"  kind        {error.kind}",
        f"  problem     {error.problem}",
        f"  suggestion  {error.suggestion}",
    ]


def lines(passed: Passed, limit_note: str) -> list[str]:
    return [
        f"{passed.model_id}: can be served",
        f"  format        {passed.format}",
        f"  architecture  {passed.architecture}, {passed.parameters:,} parameters",
        f"  tokenizer     {passed.tokenizer}",
        f"  context       {passed.context:,} tokens",
        f"  memory        {size(passed.needed_bytes)} at least, of which weights {size(passed.weight_bytes)}; "
        f"{size(passed.limit_bytes)} may be used: {limit_note}",
    ]
