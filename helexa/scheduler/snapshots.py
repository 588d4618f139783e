"""Snapshots of recurrent state, for models that have some beside KV. Pure.

KV can be taken up after any block, a state only where it was saved: a cached prefix of such a model ends at a snapshot. One is
taken at every so many tokens of a prompt and behind its last block that leaves a token to compute, so steps are cut there. A
snapshot belongs to the cached block that it stands behind, and goes with it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from helexa.scheduler.block_pool import BLOCK_SIZE
from helexa.scheduler.prefix_cache import Node


class Snapshots:
    """Slots 0 .. total - 1. Law: a slot is free, or of one cached block, or being written by one sequence's step in flight."""

    def __init__(self, total: int, every: int) -> None:
        """`every`: tokens, a multiple of the block size."""
        assert every > 0 and every % BLOCK_SIZE == 0, "snapshots stand behind whole blocks"
        self.total = total
        self._every = every
        self._free = list(range(total - 1, -1, -1))
        self._of_block: OrderedDict[int, int] = OrderedDict()  # slots by block, the longest unused first
        self._pins: Counter[int] = Counter()  # sequences that are to start from a slot, and have not yet

    def __len__(self) -> int:
        return len(self._of_block)

    def next_position(self, prompt_len: int, computed: int) -> int | None:
        """Where the next snapshot of a prompt is to be taken, in tokens; None past the last, and where there is no slot at all."""
        last = (prompt_len - 1) // BLOCK_SIZE * BLOCK_SIZE
        if computed >= last or not self.total:
            return None
        return min(last, (computed // self._every + 1) * self._every)

    def usable(self, nodes: list[Node]) -> list[Node]:
        """A chain of cached blocks up to the last that a snapshot stands behind."""
        while nodes and nodes[-1].block not in self._of_block:
            nodes = nodes[:-1]
        return nodes

    def pin(self, block: int) -> int:
        """The slot of a block, kept until `unpin`."""
        slot = self._of_block[block]
        self._of_block.move_to_end(block)
        self._pins[slot] += 1
        return slot

    def unpin(self, slot: int) -> None:
        self._pins[slot] -= 1

    def take(self) -> int | None:
        """A slot to write, where one is free or the longest unused can be given up."""
        if self._free:
            return self._free.pop()
        block = next((block for block, slot in self._of_block.items() if not self._pins[slot]), None)
        return None if block is None else self._of_block.pop(block)

    def give_back(self, slot: int) -> None:
        """What was written is not wanted."""
        self._free.append(slot)

    def attach(self, block: int, slot: int) -> None:
        """What was written stands behind a cached block; one that has a snapshot keeps its own."""
        if block in self._of_block:
            self.give_back(slot)
        else:
            self._of_block[block] = slot

    def drop(self, block: int) -> None:
        """The block is not cached any more."""
        slot = self._of_block.pop(block, None)
        if slot is not None:
            assert not self._pins[slot], "a snapshot is dropped that a sequence is to start from"
            self._free.append(slot)

    def clear(self) -> None:
        """The worker's memory is gone."""
        for block in list(self._of_block):
            self.drop(block)

    def check(self, writing: list[int], starting: Iterable[int], cached: set[int]) -> None:
        """Raises AssertionError where the law is broken, given the slots that are written, those that sequences are to start from,
        and the cached blocks."""
        slots = [*self._free, *self._of_block.values(), *writing]
        assert sorted(slots) == list(range(self.total)), "a snapshot is in two places, or in none"
        assert set(self._of_block) <= cached, "a snapshot stands behind a block that is not cached"
        pins = Counter(starting)
        assert pins == +self._pins and set(pins) <= set(self._of_block.values()), "a snapshot's pins are miscounted"
