"""Which sequence holds which KV blocks, and how many it may still take. Pure.

A sequence reserves its tokens and its next `reserve_tokens` of growth; blocks are taken one by one as it computes. Law: what
is reserved and not yet taken is never more than what is available, so a sequence whose whole reply is reserved never waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from helexa.scheduler.block_pool import BLOCK_SIZE, BlockPool, blocks_for
from helexa.scheduler.prefix_cache import PrefixCache
from helexa.scheduler.sequence import Sequence
from helexa.scheduler.snapshots import Snapshots


class KvMemory:
    def __init__(self, blocks: int, reserve_tokens: int, cached_limit: int, snapshots: Snapshots | None = None) -> None:
        """`cached_limit`: blocks kept for prefixes that nobody runs now; 0: no prefix cache. `snapshots`: of a model that has recurrent
        state; None: it has none."""
        self.cache = PrefixCache()
        self.pool = BlockPool(blocks, cached_limit, self._on_evict)
        self._reserve_tokens = reserve_tokens
        self._caching = cached_limit > 0
        self._snapshots = snapshots
        self._unallocated = 0  # reserved by sequences and not taken yet

    @property
    def num_unreserved(self) -> int:
        return self.pool.num_available - self._unallocated

    def seat(self, sequence: Sequence) -> bool:
        """Reserves for a sequence that takes a seat, and gives it the cached blocks that its tokens begin with. When its
        reservation does not fit: False, and nothing changed."""
        nodes = []
        if self._caching and not sequence.scores_prompt:  # a cached prompt has no logits
            nodes = self.cache.match(sequence.request.cache_root, sequence.tokens, (sequence.num_tokens - 1) // BLOCK_SIZE)
        if self._snapshots is not None:
            nodes = self._snapshots.usable(nodes)
        wanted = blocks_for(self._reserved_tokens(sequence))
        unused = sum(self.pool.holders(node.block) == 0 for node in nodes)
        if wanted - len(nodes) > self.num_unreserved - unused:
            return False
        for node in nodes:
            self.pool.share(node.block)
        sequence.blocks = [node.block for node in nodes]
        sequence.reserved_blocks = wanted
        sequence.num_computed_tokens = len(nodes) * BLOCK_SIZE
        sequence.num_registered_blocks = len(nodes)
        sequence.cache_node = nodes[-1] if nodes else None
        if not sequence.ever_seated:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        self._unallocated += wanted - len(nodes)
        if self._snapshots is not None and nodes:
            sequence.snapshot = self._snapshots.pin(nodes[-1].block)
        return True

    def fits(self, sequence: Sequence) -> bool:
        """Whether the reservation of a sequence that waits fits now, were nothing of it cached."""
        return blocks_for(self._reserved_tokens(sequence)) <= self.num_unreserved

    def _reserved_tokens(self, sequence: Sequence) -> int:
        return min(sequence.most_tokens, sequence.num_tokens + self._reserve_tokens)

    def grow(self, sequence: Sequence, tokens: int) -> list[int] | None:
        """New blocks so that the sequence holds `tokens` positions, extending its reservation if it must; None when that is
        impossible now."""
        needed = blocks_for(tokens) - len(sequence.blocks)
        if needed <= 0:
            return []
        if len(sequence.blocks) + needed > sequence.reserved_blocks and not self._extend(sequence, tokens):
            return None
        blocks = self.pool.allocate(needed)
        assert blocks is not None, "reserved blocks are available"
        self._unallocated -= needed
        sequence.blocks.extend(blocks)
        return blocks

    def _extend(self, sequence: Sequence, tokens: int) -> bool:
        least = blocks_for(tokens) - sequence.reserved_blocks
        wanted = blocks_for(max(tokens, self._reserved_tokens(sequence))) - sequence.reserved_blocks
        given = min(wanted, self.num_unreserved)
        if given < least:
            return False
        sequence.reserved_blocks += given
        self._unallocated += given
        return True

    def register(self, sequence: Sequence) -> None:
        """Full blocks that the sequence has computed become prefixes for others; where there is recurrent state, once a snapshot
        stands behind them."""
        if self._snapshots is None:
            self._register_blocks(sequence)
        elif sequence.saving >= 0:
            self._register_blocks(sequence)
            self._keep_snapshot(sequence, self._snapshots)

    def _register_blocks(self, sequence: Sequence) -> None:
        full = sequence.num_computed_tokens // BLOCK_SIZE
        if not self._caching or full <= sequence.num_registered_blocks:
            return
        node = sequence.cache_node or self.cache.root(sequence.request.cache_root)
        for index in range(sequence.num_registered_blocks, full):
            tokens = tuple(sequence.tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
            node = self.cache.insert(node, tokens, sequence.blocks[index])
        sequence.cache_node = node
        sequence.num_registered_blocks = full

    def _keep_snapshot(self, sequence: Sequence, snapshots: Snapshots) -> None:
        node, slot = sequence.cache_node, sequence.saving
        sequence.saving = -1
        if self._caching and node is not None and node.alive:
            snapshots.attach(node.block, slot)
        else:
            snapshots.give_back(slot)

    def most_tokens(self, sequence: Sequence) -> int:
        """How many tokens a step may compute of a sequence, for it to end where a snapshot is to be taken."""
        position = None
        if self._snapshots is not None and self._caching:
            position = self._snapshots.next_position(sequence.request.prompt_len, sequence.num_computed_tokens)
        return sequence.num_new_tokens if position is None else position - sequence.num_computed_tokens

    def plan_snapshot(self, sequence: Sequence, count: int) -> None:
        """Whether the step that computes `count` tokens of the sequence saves the state behind them: `saving`."""
        if self._snapshots is None or not self._caching:
            return
        position = self._snapshots.next_position(sequence.request.prompt_len, sequence.num_computed_tokens)
        if position == sequence.num_computed_tokens + count:
            slot = self._snapshots.take()
            sequence.saving = -1 if slot is None else slot

    def has_joined(self, sequence: Sequence) -> None:
        """The worker was told where the sequence starts from."""
        if self._snapshots is not None and sequence.snapshot >= 0:
            self._snapshots.unpin(sequence.snapshot)
            sequence.snapshot = -1

    def release(self, sequence: Sequence) -> None:
        """The sequence gives up its blocks and its reservation; registered blocks stay as cached ones."""
        self._unallocated -= sequence.reserved_blocks - len(sequence.blocks)
        self.has_joined(sequence)
        if self._snapshots is not None and sequence.saving >= 0:
            self._snapshots.give_back(sequence.saving)
            sequence.saving = -1
        self.pool.release(sequence.blocks, self.cache.holds)
        sequence.blocks = []
        sequence.reserved_blocks = 0
        sequence.num_computed_tokens = sequence.num_registered_blocks = 0
        sequence.cache_node = None

    def forget_contents(self) -> None:
        """The worker's memory is gone: no block holds anything any more. Sequences have been released before."""
        cached = self.cache.blocks()
        self.cache.clear()
        if self._snapshots is not None:
            self._snapshots.clear()
        for block in cached:
            self.pool.drop_cached(block)

    def adjust(self, reserve_tokens: int, cached_limit: int) -> None:
        """Other bounds, for what is seated and released from now on; what the prefix cache holds beyond its own is let go."""
        self._reserve_tokens = reserve_tokens
        self._caching = cached_limit > 0
        self.pool.limit_cached(cached_limit)

    def flush_cache(self) -> int:
        """Forgets the prefixes that nobody runs now; how many blocks they took."""
        cached = self.pool.num_cached
        self.pool.evict_cached(down_to=0)
        return cached

    def _on_evict(self, block: int) -> None:
        gone = self.cache.evict(block)
        for below in gone:
            self.pool.drop_cached(below)
        if self._snapshots is not None:
            for each in (block, *gone):
                self._snapshots.drop(each)

    def check(self, holders: Iterable[Sequence]) -> None:
        """Raises AssertionError when a law is broken."""
        self.pool.check()
        holders = list(holders)
        counts: dict[int, int] = {}
        for sequence in holders:
            assert len(sequence.blocks) <= sequence.reserved_blocks, "a sequence holds more than it reserved"
            for block in sequence.blocks:
                counts[block] = counts.get(block, 0) + 1
        assert all(self.pool.holders(block) == count for block, count in counts.items()), "a block's holders are miscounted"
        assert len(counts) == self.pool.num_used, "a used block has no holder"
        unallocated = sum(sequence.reserved_blocks - len(sequence.blocks) for sequence in holders)
        assert unallocated == self._unallocated <= self.pool.num_available, "more is reserved than there is"
        for block in self.cache.blocks():
            assert self.pool.holders(block) or block in self.pool._cached, "a registered block is free"
        if self._snapshots is not None:
            writing = [sequence.saving for sequence in holders if sequence.saving >= 0]
            starting = [sequence.snapshot for sequence in holders if sequence.snapshot >= 0]
            self._snapshots.check(writing, starting, self.cache.blocks())
