"""What fits on this machine, for people who choose a model."""

from __future__ import annotations

import os
from pathlib import Path

from helexa.catalogue.memory_plan import PROCESS_BYTES
from helexa.config import Config
from workers import machine


def memory_limit(config: Config) -> machine.MemoryLimit:
    """Bytes for weights, KV and workspace, and what bounds them."""
    wanted = 0 if config.memory.limit_mib == "auto" else config.memory.limit_mib * 2**20
    return machine.memory_limit(Path("/"), config.devices.tensor_parallel * PROCESS_BYTES, wanted)


def most_memory(config: Config) -> int:
    """Bytes that there could be at best, however much is in use now."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return config.memory.limit_mib * 2**20 if config.memory.limit_mib != "auto" else int(installed * machine.MEMORY_SHARE)


def room(config: Config) -> int:
    """Bytes of weights that fit, as they lie in a file."""
    return max(1, memory_limit(config).bytes - config.devices.tensor_parallel * PROCESS_BYTES)
