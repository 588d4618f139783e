"""A decoder of pre-norm blocks, which most architectures are: x + attention(norm(x)), then x + feed_forward(norm(x))."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from helexa.formats.decoder_shape import Shape
from workers.layers.attention import Attention, local_heads
from workers.layers.feed_forward import FeedForward, SiluFeedForward
from workers.layers.vocabulary import Vocabulary
from workers.layers.weights import Weights
from workers.ops.protocol import Ops, Rope, Value, Vector


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
    """A loaded model, or a rank's shard; see `Model` in workers/models/registry.py."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    vocabulary: Vocabulary
    blocks: tuple[Block, ...]
    norm: Vector
    width: int = 0  # E
    pooling: str = ""  # as in Shape

    @classmethod
    def load(cls, weights: Weights, shape: Shape, block: Callable[[int], Block]) -> Decoder:
        """`block` loads the layer of a number."""
        local = local_heads(weights, shape)
        return cls(
            layers=shape.layers,
            heads=local.heads.width,
            kv_heads=local.kv_heads.width,
            head_dim=shape.head_dim,
            vocab=shape.vocab,
            context=shape.context,
            eps=shape.eps,
            vocabulary=load_vocabulary(weights, shape),
            blocks=tuple(block(layer) for layer in range(shape.layers)),
            norm=weights.norm("norm", shape.width),
            width=shape.width,
            pooling=shape.pooling,
        )

    def forward(self, ops: Ops) -> Value:
        x = self.vocabulary.embed(ops)
        for block in self.blocks:
            x = ops.add(x, block.attention(ops, ops.rms_norm(x, block.attention_norm, self.eps)))
            x = ops.add(x, block.feed_forward(ops, ops.rms_norm(x, block.ffn_norm, self.eps)))
        rows = ops.rms_norm(ops.gather_logit_rows(x), self.norm, self.eps)
        return rows if self.pooling else self.vocabulary.logits(ops, rows)


def load_gated_decoder(weights: Weights, shape: Shape, ropes: Sequence[Rope], windows: Sequence[int]) -> Decoder:
    """Every block of attention and a feed-forward gated by silu. `ropes` and `windows`, where 0 is all positions: a layer each."""

    def block(layer: int) -> Block:
        attention = Attention.load(weights, shape, layer, ropes[layer], window=windows[layer])
        return Block.load(weights, shape, attention, SiluFeedForward.load(weights, layer, shape.width, shape.hidden))

    return Decoder.load(weights, shape, block)


def load_vocabulary(weights: Weights, shape: Shape) -> Vocabulary:
    if shape.tied:
        weights.tensors.ignore(weights.names["head"])
    return Vocabulary.load(
        weights.ops, weights.shard, shape.vocab, lambda role, part: weights.rows(role, part, shape.width), shape.tied
    )
