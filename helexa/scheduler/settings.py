"""What the configuration means for one model: to its device worker, and to its scheduler. Pure."""

from __future__ import annotations

from helexa.catalogue.memory_plan import MemoryPlan
from helexa.config import Config
from helexa.scheduler.admission import Limits
from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.prices import PriceTable, StepPrices, UnitPrices
from ipc.leash_messages import ServeModel
from ipc.messages import Load, Loaded

QUANT_CACHE = "quantised"  # the folder in paths.cache


def quant_cache(config: Config) -> tuple[str, int]:
    """The folder that keeps weights quantised at load, and how many bytes of them."""
    return (f"{config.paths.cache}/{QUANT_CACHE}" if config.paths.cache else ""), config.cache.quantised_mib * 2**20


def memory_limit(config: Config) -> int:
    """Bytes that a model may take; 0: what the machine allows."""
    return 0 if config.memory.limit_mib == "auto" else config.memory.limit_mib * 2**20


def load_message(served: ServeModel, config: Config) -> Load:
    kept, kept_bytes = quant_cache(config)
    return Load(
        served.files,
        config.scheduling.step_tokens,
        64 if config.admission.seats == "auto" else config.admission.seats,
        served.context,
        memory_limit(config),
        0 if config.cpu.threads == "auto" else config.cpu.threads,
        config.cpu.ops,
        served.quant,
        kept,
        kept_bytes,
        config.devices.tensor_parallel,
    )


def limits_of(config: Config, loaded: Loaded, plan: MemoryPlan) -> Limits:
    return Limits(
        context=loaded.context,
        vocab=loaded.vocab,
        seats=plan.seats,
        blocks=plan.blocks,
        queue_depth=config.admission.queue_depth,
        queue_wait_s=config.admission.queue_wait_s,
        queue_tokens=config.admission.queue_tokens,
        step_tokens=config.scheduling.step_tokens,
        min_step_ms=config.scheduling.min_step_ms,
        slow_client_s=config.streaming.slow_client_s,
        reserve_tokens=config.scheduling.reserve_tokens,
        cached_blocks=config.cache.prefix_mib * 2**20 // loaded.bytes_per_block,
        repeat_steps=config.scheduling.steps_ahead,
        recurrent=loaded.state_bytes > 0,
        snapshots=plan.snapshots,
        snapshot_every=config.cache.snapshot_every // BLOCK_SIZE * BLOCK_SIZE,
    )


def prices_of(loaded: Loaded) -> StepPrices:
    units = UnitPrices(loaded.logit_row_ms, loaded.decode_position_ms, loaded.prompt_position_ms)
    return StepPrices(PriceTable(loaded.prices), units)
