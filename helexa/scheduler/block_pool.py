"""The KV blocks of one model, by number. Law: free + used + cached = total, and a block is in one place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

BLOCK_SIZE = 16  # tokens


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` positions."""
    return -(-tokens // BLOCK_SIZE)


class BlockPool:
    """Hands out block numbers 0 .. total - 1. The last freed goes first: memory that was never needed is never touched.

    A used block has one or more holders. A block without holders is free, or cached where somebody may want its contents
    again; cached ones are taken back, the longest unused first, when free ones run out or `cached_limit` is passed.
    """

    def __init__(self, total: int, cached_limit: int, on_evict: Callable[[int], None]) -> None:
        """`on_evict(block)` is told of a cached block before it is free again."""
        self.total = total
        self.evictions = 0
        self._cached_limit = cached_limit
        self._on_evict = on_evict
        self._free = list(range(total - 1, -1, -1))
        self._holders = [0] * total
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.total - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one holder each, or None (and nothing is taken) when fewer are available."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            self._evict()
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        return taken

    def share(self, block: int) -> None:
        """One more holder for a used or cached block."""
        if self._holders[block] == 0:
            del self._cached[block]
        self._holders[block] += 1

    def release(self, blocks: list[int], worth_keeping: Callable[[int], bool]) -> None:
        """One holder less for each; the last of a chain are the first to be evicted later."""
        for block in reversed(blocks):
            assert self._holders[block] > 0, f"block {block} is released by nobody"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if worth_keeping(block):
                    self._cached[block] = None
                else:
                    self._free.append(block)
        self.evict_cached(self._cached_limit)

    def limit_cached(self, cached_limit: int) -> None:
        self._cached_limit = cached_limit
        self.evict_cached(cached_limit)

    def evict_cached(self, down_to: int) -> None:
        """Until at most so many cached blocks are left, the longest unused first."""
        while len(self._cached) > down_to:
            self._evict()

    def drop_cached(self, block: int) -> None:
        """A cached block's contents are of no use any more; does nothing to a used one."""
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def _evict(self) -> None:
        block = next(iter(self._cached))
        self.evictions += 1
        self._on_evict(block)
        self.drop_cached(block)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def check(self) -> None:
        """Raises AssertionError when the law is broken."""
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(self._holders) if count}
        assert len(free) == len(self._free), "a block is free twice"
        assert len(free) + len(cached) + len(used) == self.total, "free + used + cached != total"
        assert not (free & cached or free & used or cached & used), "a block is in two places"
