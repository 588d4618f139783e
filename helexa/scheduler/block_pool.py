"""The KV blocks of one model, by number. Law: free + used = total, and a block is in one place."""

from __future__ import annotations

BLOCK_SIZE = 16  # tokens


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` positions."""
    return -(-tokens // BLOCK_SIZE)


class BlockPool:
    """Hands out block numbers 0 .. total - 1. The last freed goes first: memory that was never needed is never touched."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._used = bytearray(total)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.total - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None (and nothing is taken) when fewer are free."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._used[block] = 1
        return taken

    def free(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            assert self._used[block], f"block {block} freed twice"
            self._used[block] = 0
            self._free.append(block)

    def check(self) -> None:
        """Raises AssertionError when the law is broken."""
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert len(self._free) + sum(self._used) == self.total, "free + used != total"
        assert not any(self._used[block] for block in self._free), "a free block is in use"
