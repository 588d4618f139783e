"""How the memory that is left after the weights becomes KV blocks and seats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helexa.errors import StartError

BLOCK_SIZE = 16  # tokens
MOST_SEATS = 64
SEAT_TOKENS = 4096  # what `auto` sets aside for a sequence of a longer context
PROCESS_BYTES = 60 * 2**20  # a rank of a device worker before it loads weights
LEAST_TOKENS = 256  # a cache below this serves nobody
SNAPSHOT_SHARE = 4  # snapshots of recurrent state take at most one part in so many of what is left


@dataclass(frozen=True)
class MemoryPlan:
    blocks: int
    seats: int
    note: str  # for people: what there is, and what bound it
    snapshots: int = 0  # of recurrent state


@dataclass(frozen=True)
class StateNeed:
    """The recurrent state of a sequence, and what may be spent on snapshots of it, in bytes; 0 where a model has none."""

    state_bytes: int = 0
    snapshot_bytes: int = 0

    def snapshots(self, free_bytes: int) -> int:
        return min(self.snapshot_bytes, free_bytes // SNAPSHOT_SHARE) // self.state_bytes if self.state_bytes else 0


NO_STATE = StateNeed()


def least_bytes(
    weights: int,
    bytes_per_block: int,
    context: int,
    kv_blocks: int | Literal["auto"] = "auto",
    state_bytes: int = 0,
    ranks: int = 1,
) -> int:
    """What a model takes at least: a process for each rank, and, over all of them, its weights and a sequence's KV and recurrent
    state."""
    blocks = -(-min(context, SEAT_TOKENS) // BLOCK_SIZE) if kv_blocks == "auto" else kv_blocks
    return ranks * PROCESS_BYTES + weights + state_bytes + blocks * bytes_per_block


def plan_memory(
    free_bytes: int,
    bytes_per_block: int,
    context: int,
    seats: int | Literal["auto"],
    batching: bool,
    bound_by: str,
    kv_blocks: int | Literal["auto"] = "auto",
    state: StateNeed = NO_STATE,
) -> MemoryPlan:
    """`free_bytes` are for KV and, where the model has it, recurrent state. Raises StartError, naming the remedies, where they hold no
    useful cache, or not `kv_blocks`."""
    snapshots = state.snapshots(free_bytes)
    left = free_bytes - snapshots * state.state_bytes
    count = 1 if not batching else _most_seats(left, bytes_per_block, context, kv_blocks, state) if seats == "auto" else seats
    left = max(0, left - count * state.state_bytes)
    held = left // bytes_per_block
    if kv_blocks != "auto":
        if kv_blocks > held:
            raise StartError(
                f"memory.kv_blocks = {kv_blocks} needs {kv_blocks * bytes_per_block / 2**20:.0f} MiB, and "
                f"{left / 2**20:.0f} MiB are left; bound by {bound_by}. Lower it, or raise memory.limit_mib"
            )
        held, bound_by = kv_blocks, "memory.kv_blocks"
    if held * BLOCK_SIZE < min(LEAST_TOKENS, context):
        raise StartError(
            f"{left / 2**20:.0f} MiB are left for the KV cache, which hold {held * BLOCK_SIZE} tokens: too few to serve; "
            f"bound by {bound_by}. Raise memory.limit_mib, free memory, or choose a smaller model"
        )
    blocks = min(held, count * -(-context // BLOCK_SIZE))
    states = ""
    if state.state_bytes:
        states = f", recurrent state of {state.state_bytes / 2**20:.1f} MiB for each and for {snapshots} snapshots"
    note = (
        f"KV cache for {blocks * BLOCK_SIZE:,} tokens ({blocks * bytes_per_block / 2**30:.2f} GiB, taken as used), "
        f"{count} seat{'s' if count > 1 else ''}{states}, context {context:,}; limit: {bound_by}"
    )
    return MemoryPlan(blocks, count, note, snapshots)


def _most_seats(free_bytes: int, bytes_per_block: int, context: int, kv_blocks: int | Literal["auto"], state: StateNeed) -> int:
    """What `auto` takes: seats with room for SEAT_TOKENS of KV each, at least one."""
    per_seat = -(-min(context, SEAT_TOKENS) // BLOCK_SIZE)
    if kv_blocks == "auto":
        most = free_bytes // (per_seat * bytes_per_block + state.state_bytes)
    else:
        most = kv_blocks // per_seat
        if state.state_bytes:
            most = min(most, (free_bytes - kv_blocks * bytes_per_block) // state.state_bytes)
    return max(1, min(MOST_SEATS, most))
