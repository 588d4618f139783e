"""The embedding and the head of a model, each rank with some tokens' rows of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workers.ops.protocol import Matrix, Ops, RawTensor, Value
from workers.weights.sharding import GROUP_UNIT, Part, Shard


@dataclass(frozen=True)
class Vocabulary:
    """`part`: which tokens' rows of the two are here. A tied head is the embedding."""

    embedding: Matrix
    head: Matrix
    part: Part

    @classmethod
    def load(cls, ops: Ops, shard: Shard, tokens: int, rows: Callable[[str, Part], RawTensor], tied: bool) -> Vocabulary:
        """`rows(role, part)` reads the rows of `embedding` or `head`."""
        part = shard.part(tokens, GROUP_UNIT)
        embedding = ops.matrix([rows("embedding", part)])
        return cls(embedding, embedding if tied else ops.matrix([rows("head", part)]), part)

    def embed(self, ops: Ops) -> Value:
        """N E."""
        return ops.embed(self.embedding) if self.part.is_whole else ops.embed_across(self.embedding, self.part.first)

    def logits(self, ops: Ops, rows: Value, soft_cap: float = 0.0) -> Value:
        """R V of normed rows (R E), on rank 0. `soft_cap` as in Ops.soft_cap; 0 is none."""
        logits = ops.linear(rows, self.head)
        if soft_cap:
            logits = ops.soft_cap(logits, soft_cap)
        return logits if self.part.is_whole else ops.gather_logits(logits, self.part.widths)
