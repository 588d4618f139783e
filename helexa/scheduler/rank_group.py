"""The ranks of a model's worker, as one worker: who is told what, and what all of them have said. Pure.

The engine speaks with the worker as a whole. What it says goes to every rank; what they answer while they load reaches it once all
have answered; what a step gives comes from rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import structs

from ipc.codec import BadMessage
from ipc.messages import Exported, Fault, Join, Loaded, Ready, ToWorker, Yield

LEADER = 0
M = TypeVar("M")


def recipients(message: ToWorker, ranks: int) -> list[int]:
    """Ranks, in the order in which they are told. Rank 0 goes ahead as soon as it is told, so it comes last; it alone is called back
    from a run of several steps, and tells the others."""
    return [LEADER] if isinstance(message, Yield) else list(range(ranks - 1, LEADER - 1, -1))


class RankGroup:
    def __init__(self, ranks: int, memory_limit: int) -> None:
        """`memory_limit`: bytes that all ranks may take together where they share the machine's; 0: what the machine allows."""
        self._ranks = ranks
        self._memory_limit = memory_limit
        self._said: dict[type, dict[int, object]] = {}  # by kind of message, then by rank

    def take(self, rank: int, message: object) -> object | None:
        """What the worker as a whole says with that; None where other ranks have yet to say theirs. All Exported together are a Join,
        which is for the ranks. Raises BadMessage for what this rank does not say, or has said."""
        if isinstance(message, Exported | Loaded | Ready):
            return self._take_part(rank, message)
        if rank != LEADER and not isinstance(message, Fault):
            raise BadMessage(f"{type(message).__name__} of rank {rank}; it is rank {LEADER} that says it")
        return message

    def _take_part(self, rank: int, message: Exported | Loaded | Ready) -> object | None:
        said = self._said.setdefault(type(message), {})
        if rank in said:
            raise BadMessage(f"a second {type(message).__name__} of rank {rank}")
        said[rank] = message
        if len(said) < self._ranks:
            return None
        del self._said[type(message)]
        if isinstance(message, Exported):
            return Join([one.handles for one in _by_rank(said, Exported)])
        if isinstance(message, Loaded):
            return combine(_by_rank(said, Loaded), self._memory_limit)
        return Ready(sum(one.kv_bytes for one in _by_rank(said, Ready)))


def _by_rank(said: Mapping[int, object], kind: type[M]) -> list[M]:
    return [one for _, one in sorted(said.items()) if isinstance(one, kind)]


def combine(loaded: Sequence[Loaded], memory_limit: int) -> Loaded:
    """What the ranks of a worker have loaded, by rank, as if it were one. Prices are of rank 0, which measured with the others.

    Where ranks share the machine's memory, the KV of all must fit into what is free: a block costs what it costs all ranks. Each
    sees the others' weights as memory that is not free, but under a limit of its own it sees its own alone. Where each has a device,
    the one with least room decides.
    """
    first = loaded[0]
    free = min(one.free_bytes for one in loaded)
    weights = sum(one.weight_bytes for one in loaded)
    if memory_limit and not first.own_memory:
        free = max(0, memory_limit - weights)
    together = max if first.own_memory else sum
    return structs.replace(
        first,
        free_bytes=free,
        weight_bytes=weights,
        bytes_per_block=together(one.bytes_per_block for one in loaded),
        state_bytes=together(one.state_bytes for one in loaded),
        context=min(one.context for one in loaded),
        threads_note=first.threads_note if len(loaded) == 1 else f"{first.threads_note}, in each of {len(loaded)} ranks",
        load_seconds=max(one.load_seconds for one in loaded),
    )
