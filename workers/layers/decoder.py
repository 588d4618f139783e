"""A decoder of pre-norm blocks, which most architectures are: x + attention(norm(x)), then x + feed_forward(norm(x))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helexa.formats.decoder_shape import Shape
from workers.layers.attention import Attention
from workers.layers.feed_forward import FeedForward
from workers.layers.weights import Weights
from workers.ops.protocol import Matrix, Ops, Value, Vector


@dataclass(frozen=True)
class Block:
    attention_norm: Vector
    attention: Attention
    ffn_norm: Vector
    feed_forward: FeedForward

    @classmethod
    def load(cls, weights: Weights, shape: Shape, attention: Attention, feed_forward: FeedForward) -> Block:
        layer = attention.layer
        return cls(
            attention_norm=weights.norm("attention_norm", shape.width, layer),
            attention=attention,
            ffn_norm=weights.norm("ffn_norm", shape.width, layer),
            feed_forward=feed_forward,
        )


@dataclass(frozen=True, eq=False)
class Decoder:
    """A loaded model; see `Model` in workers/models/registry.py."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    embedding: Matrix
    blocks: tuple[Block, ...]
    norm: Vector
    head: Matrix
    width: int = 0  # E
    pooling: str = ""  # as in Shape

    @classmethod
    def load(cls, weights: Weights, shape: Shape, block: Callable[[int], Block]) -> Decoder:
        """`block` loads the layer of a number."""
        embedding = weights.matrix("embedding", shape.vocab, shape.width)
        return cls(
            layers=shape.layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            vocab=shape.vocab,
            context=shape.context,
            eps=shape.eps,
            embedding=embedding,
            blocks=tuple(block(layer) for layer in range(shape.layers)),
            norm=weights.norm("norm", shape.width),
            head=weights.head(embedding, shape.vocab, shape.width, shape.tied),
            width=shape.width,
            pooling=shape.pooling,
        )

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.embedding)
        for block in self.blocks:
            x = ops.add(x, block.attention(ops, ops.rms_norm(x, block.attention_norm, self.eps)))
            x = ops.add(x, block.feed_forward(ops, ops.rms_norm(x, block.ffn_norm, self.eps)))
        rows = ops.rms_norm(ops.gather_logit_rows(x), self.norm, self.eps)
        return rows if self.pooling else ops.linear(rows, self.head)
