"""`helexa plan`: where the memory of a model goes on this machine, and what would change it."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from helexa import catalogue
from helexa.catalogue.memory_plan import MOST_SEATS, PROCESS_BYTES, SEAT_TOKENS, MemoryPlan, StateNeed, plan_memory
from helexa.catalogue.model_shape import BLOCK_SIZE, ModelShape, read_shape
from helexa.config import Config
from helexa.errors import StartError
from helexa.formats.checkpoint import open_checkpoint
from workers import machine

GIB, MIB, KIB = 2**30, 2**20, 2**10


def plan(config: Config, out: TextIO) -> int:
    """Prints the plan of the configured model. Raises StartError when it is not in the cache, or does not fit."""
    source = catalogue.parse(config.model.source, config)
    found = catalogue.find(source, config)
    if found is None:
        raise StartError(f"{source.given} is not in the cache; fetch it with `helexa pull {source.given}`")
    file = open_checkpoint(next(iter(found.files.values())))
    shape = read_shape(file)
    file.close()
    wanted = 0 if config.memory.limit_mib == "auto" else config.memory.limit_mib * MIB
    limit = machine.memory_limit(Path("/"), config.devices.tensor_parallel * PROCESS_BYTES, wanted)
    for line in explain(source.served_name, shape, limit, config):
        print(line, file=out)
    return 0


def explain(name: str, shape: ModelShape, limit: machine.MemoryLimit, config: Config) -> list[str]:
    """The lines of the plan."""
    reference = config.cpu.ops == "reference"
    weights = shape.float_bytes if reference else shape.packed_bytes
    ranks = config.devices.tensor_parallel
    left = max(0, limit.bytes - weights - ranks * PROCESS_BYTES)
    context = min(config.model.context or shape.context, shape.context)
    admission = config.admission
    need = StateNeed(shape.state_bytes, config.cache.snapshot_mib * MIB if config.cache.prefix_mib else 0)
    planned = plan_memory(left, shape.bytes_per_block, context, admission.seats, admission.batching, limit.note, state=need)
    left -= (planned.seats + planned.snapshots) * shape.state_bytes
    blocks = left // shape.bytes_per_block
    return [
        f"{name}: {shape.architecture}, {shape.layers} layers, {shape.heads} heads, {shape.kv_heads} KV heads of {shape.head_dim}, "
        f"vocabulary {shape.vocab:,}, trained for {shape.context:,} tokens",
        f"  limit     {limit.bytes / GIB:8.2f} GiB  {limit.note}",
        f"  weights   {weights / GIB:8.2f} GiB  {'as float32, for the reference ops' if reference else 'as in the file, for the native ops'}",
        f"  process   {ranks * PROCESS_BYTES / GIB:8.2f} GiB{f'  one for each of {ranks} ranks' if ranks > 1 else ''}",
        *_states(shape, planned),
        f"  KV cache  {left / GIB:8.2f} GiB  {blocks:,} blocks of {BLOCK_SIZE} tokens, {shape.bytes_per_block / KIB:,.1f} KiB each: "
        f"{blocks * BLOCK_SIZE:,} tokens at {shape.kv_bytes_per_token / KIB:.1f} KiB",
        *_seats(shape, blocks, context),
        f"  served    {planned.seats} seats, {planned.blocks:,} blocks, context {context:,}",
        *_remedies(shape, planned.seats, blocks, context, config),
    ]


def _states(shape: ModelShape, planned: MemoryPlan) -> list[str]:
    """What a hybrid model holds of a sequence beside KV."""
    if not shape.state_bytes:
        return []
    count = planned.seats + planned.snapshots
    return [
        f"  state     {count * shape.state_bytes / GIB:8.2f} GiB  recurrent, of {shape.recurrent_layers} layers: "
        f"{shape.state_bytes / MIB:,.1f} MiB for each of {planned.seats} seats and {planned.snapshots} snapshots"
    ]


def _seats(shape: ModelShape, blocks: int, context: int) -> list[str]:
    """Streams that fit at some contexts, each filled to the end."""
    sizes = sorted({size for size in (512, 2048, 8192, 32768) if size < context} | {context})
    fits = [f"{blocks // -(-size // BLOCK_SIZE):,} of {size:,}" for size in sizes]
    return [f"  streams   that fit at once, by their length in tokens: {', '.join(fits)}"]


def _remedies(shape: ModelShape, seats: int, blocks: int, context: int, config: Config) -> list[str]:
    if config.admission.seats != "auto":
        return [f"  to change it: admission.seats = {config.admission.seats} is set; memory.limit_mib bounds the cache"]
    if seats == MOST_SEATS:
        return [f"  to change it: {MOST_SEATS} seats are the most that `auto` takes; set admission.seats for more"]
    per_seat = -(-min(context, SEAT_TOKENS) // BLOCK_SIZE)
    missing = ((seats + 1) * per_seat - blocks) * shape.bytes_per_block + shape.state_bytes
    return [
        f"  to change it: one more seat takes {missing / MIB:,.0f} MiB: raise memory.limit_mib, free memory, or lower model.context"
    ]
