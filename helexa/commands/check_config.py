"""`helexa check-config`: what the configuration amounts to, or what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TextIO

from helexa.config import Config, KeyDoc, describe, describe_listed, value_of


def check(config: Config, config_file: Path | None, out: TextIO) -> int:
    """Prints every key whose value is not the default. The configuration was loaded, so it is right."""
    print(f"configuration: {config_file or 'no file, defaults only'}", file=out)
    for item in describe():
        value = value_of(config, item.path)
        if value != item.default and not item.path.startswith("paths."):
            print(f"  {item.path} = {json.dumps(value, default=dataclasses.asdict)}", file=out)
    print("all keys are known and their values fit", file=out)
    return 0


def list_keys(out: TextIO) -> int:
    """Prints every key as TOML, with its documentation."""
    section = ""
    for item in sorted(describe(), key=lambda item: "." in item.path):
        head, _, leaf = item.path.rpartition(".")
        if head != section:
            section = head
            print(f"\n[{section}]", file=out)
        print(f"# {_explained(item)}\n{leaf} = {_toml(item.default)}", file=out)
    print("\n# [models.NAME]", file=out)
    for item in describe_listed():
        print(f"# # {_explained(item)}\n# {item.path.rpartition('.')[2]} = {_toml(item.default)}", file=out)
    return 0


def _explained(item: KeyDoc) -> str:
    unit = f" [{item.unit}]" if item.unit else ""
    return f"{item.doc}{unit} ({item.type}; {item.reload})"


def _toml(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value)
