"""`helexa keys`: make, list and revoke API keys (docs/keys.md)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

from helexa.commands import ctl
from helexa.config import Config
from helexa.errors import ConfigError, StartError
from helexa.keys import key_file
from helexa.keys.key_file import Key


def add(config: Config, name: str, limits: dict[str, float], out: TextIO) -> int:
    """Prints the key, once. The running service takes it at once."""
    path = _path(config)
    keys = key_file.load(path) if path.exists() else []
    if any(key.name == name for key in keys):
        raise StartError(f"{path} has a key named {name!r} already; choose another name, or revoke that one")
    key, token = key_file.make(name, **limits)
    key_file.save(path, [*keys, key])
    print(token, file=out)
    return 0


def list_keys(config: Config, as_json: bool, out: TextIO) -> int:
    """Names, ids, limits and, where a service runs on the port, what was used since its scheduler started. Never a digest."""
    keys = key_file.load(_path(config))
    usage = _usage(config)
    rows = [_row(key, usage.get(key.id, {})) for key in keys]
    if as_json:
        print(json.dumps(rows, indent=1), file=out)
        return 0
    for row in rows:
        limits = [f"{row[field]:g} {words}" for field, words in _LIMITS if row[field]]
        weight = [] if row["weight"] == 1 else [f"weight {row['weight']:g}"]
        used = f"; {row['requests']:,} requests, {row['prompt_tokens']:,} + {row['output_tokens']:,} tokens" if usage else ""
        day = time.strftime("%Y-%m-%d", time.gmtime(row["created"]))
        print(f"{row['id']}  {row['name']}  {day}  {', '.join([*limits, *weight]) or 'no limits'}{used}", file=out)
    if not rows:
        print("no keys: nobody is let in; `helexa keys add NAME` makes one", file=out)
    return 0


def revoke(config: Config, which: str, out: TextIO) -> int:
    """By id or name. What the key has asked for already goes on."""
    path = _path(config)
    keys = key_file.load(path)
    kept = [key for key in keys if which not in (key.id, key.name)]
    if len(kept) == len(keys):
        raise StartError(f"{path} has no key {which!r}; `helexa keys list` prints them")
    key_file.save(path, kept)
    print(f"{which} is revoked", file=out)
    return 0


_LIMITS = (
    ("concurrency", "at once"),
    ("requests_per_minute", "requests a minute"),
    ("tokens_per_minute", "tokens a minute"),
)


def _row(key: Key, usage: dict[str, int]) -> dict[str, Any]:
    counts = {field: usage.get(field, 0) for field in ("requests", "refused", "prompt_tokens", "output_tokens")}
    limits = {field: getattr(key, field) for field, _ in _LIMITS}
    return {"id": key.id, "name": key.name, "created": key.created, **limits, "weight": key.weight, **counts}


def _usage(config: Config) -> dict[str, dict[str, int]]:
    try:
        return dict(ctl.ask(config, "status")["keys"])
    except StartError:
        return {}


def _path(config: Config) -> Path:
    if not config.keys.file:
        raise ConfigError('keys.file is not set: name a file, with --file or as `file = "keys.json"` in [keys] of helexa.toml')
    return Path(config.keys.file)
