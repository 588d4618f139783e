"""The preflight of a model that is about to be started: what could never be served is refused before its worker is."""

from __future__ import annotations

from collections.abc import Mapping

from helexa.catalogue.preflight import Wishes
from helexa.catalogue.preflight import check as preflight
from helexa.catalogue.room import most_memory
from helexa.config import Config
from helexa.formats.checkpoint import model_path
from workers.models.registry import ARCHITECTURES


def check(name: str, files: Mapping[str, str], context: int, quant: str, config: Config) -> None:
    """Raises PreflightError, or ModelFileError where there is no file of a known role.

    A context longer than the model's is cut to it, as its worker does. What other models use now may be free by the time it is
    needed, so memory is held against all that the machine has.
    """
    kv_blocks, ranks = config.memory.kv_blocks, config.devices.tensor_parallel
    wishes = Wishes(0, quant, ranks, kv_blocks, config.cpu.ops == "reference")
    preflight(name, model_path(files), wishes, most_memory(config), ARCHITECTURES)
