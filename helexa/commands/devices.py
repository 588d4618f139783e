"""`helexa devices`: the GPUs of this machine, how they reach each other, and where a model would run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TextIO

from helexa import devices
from helexa.config import Config
from helexa.devices import Gpu
from helexa.errors import ConfigError


def show(config: Config, out: TextIO, as_json: bool = False, gpus: list[Gpu] | None = None) -> int:
    found = devices.find_gpus() if gpus is None else gpus
    where, error = _where(config, found)
    if as_json:
        print(json.dumps({"gpus": [asdict(gpu) for gpu in found], "use": where, "error": error}), file=out)
        return 0
    for gpu in found:
        print(_line(gpu), file=out)
    if not found:
        print("no NVIDIA GPU was found", file=out)
    print(error or f"devices.use = {config.devices.use}: models run on {where}", file=out)
    return 0


def _where(config: Config, found: list[Gpu]) -> tuple[str, str]:
    """What the configuration means here, or what is wrong with it."""
    try:
        chosen = devices.choose(config.devices.use, config.cpu.ops, lambda: found)
    except ConfigError as error:
        return "", error.message
    return (f"cuda:{','.join(map(str, chosen))}" if chosen else "cpu"), ""


def _line(gpu: Gpu) -> str:
    gib = 2**30
    major, minor = gpu.capability
    memory = f"{gpu.memory_bytes / gib:.1f} GiB, {gpu.free_bytes / gib:.1f} free"
    links = ", ".join(f"to {other} by {how}" for other, how in sorted(gpu.links.items()))
    parts = [
        f"cuda:{gpu.index}",
        gpu.name,
        memory,
        f"compute capability {major}.{minor}{'' if gpu.usable else ' (8.0 is needed)'}",
    ]
    return "  ".join([*parts, *([links] if links else [])])
