"""How the memory that is left after the weights becomes KV blocks and seats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helexa.errors import StartError

BLOCK_SIZE = 16  # tokens
MOST_SEATS = 64
SEAT_TOKENS = 4096  # what `auto` sets aside for a sequence of a longer context
LEAST_TOKENS = 256  # a cache below this serves nobody


@dataclass(frozen=True)
class MemoryPlan:
    blocks: int
    seats: int
    note: str  # for people: what there is, and what bound it


def plan_memory(
    free_bytes: int,
    bytes_per_block: int,
    context: int,
    seats: int | Literal["auto"],
    batching: bool,
    bound_by: str,
    kv_blocks: int | Literal["auto"] = "auto",
) -> MemoryPlan:
    """`free_bytes` are for KV. Raises StartError, naming the remedies, where they hold no useful cache, or not `kv_blocks`."""
    held = free_bytes // bytes_per_block
    if kv_blocks != "auto":
        if kv_blocks > held:
            raise StartError(
                f"memory.kv_blocks = {kv_blocks} needs {kv_blocks * bytes_per_block / 2**20:.0f} MiB, and "
                f"{free_bytes / 2**20:.0f} MiB are left; bound by {bound_by}. Lower it, or raise memory.limit_mib"
            )
        held, bound_by = kv_blocks, "memory.kv_blocks"
    if held * BLOCK_SIZE < min(LEAST_TOKENS, context):
        raise StartError(
            f"{free_bytes / 2**20:.0f} MiB are left for the KV cache, which hold {held * BLOCK_SIZE} tokens: too few to serve; "
            f"bound by {bound_by}. Raise memory.limit_mib, free memory, or choose a smaller model"
        )
    per_seat = -(-min(context, SEAT_TOKENS) // BLOCK_SIZE)
    most = held // per_seat
    count = max(1, min(MOST_SEATS, most)) if seats == "auto" else seats
    if not batching:
        count = 1
    blocks = min(held, count * -(-context // BLOCK_SIZE))
    note = (
        f"KV cache for {blocks * BLOCK_SIZE:,} tokens ({blocks * bytes_per_block / 2**30:.2f} GiB, taken as used), "
        f"{count} seat{'s' if count > 1 else ''}, context {context:,}; limit: {bound_by}"
    )
    return MemoryPlan(blocks, count, note)
