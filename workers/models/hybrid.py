"""Hybrid models: Gated DeltaNet layers (Yang et al. 2024), whose past is a state of one size, between gated attention layers.

Qwen3-Next and Qwen3.5 are built so; they differ in how their files lay the weights out (qwen3_next.py, qwen3_5.py). The head for
multi-token prediction (MTP, Gloeckle et al. 2024) drafts the token after the next; it is loaded, and no step runs it yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.layers.feed_forward import MixtureOfExperts, SiluFeedForward
from workers.layers.vocabulary import Vocabulary
from workers.layers.weights import Linear
from workers.ops.protocol import Matrix, Ops, Parts, RecurrentShape, Rope, Value, Vector


@dataclass(frozen=True)
class Attention:
    """`gate` makes a factor in (0, 1) of each output column. `gathered`: how many columns the heads of each rank make, where there
    are several."""

    qkv: Matrix
    gate: Matrix
    q_norm: Vector
    k_norm: Vector
    output: Linear
    gathered: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeltaNet:
    """`mixed`: queries, keys and values before their convolution `taps`; `gate`: of the norm; `ba`: what gates the state. `gathered`:
    as in Ops.all_gather, of what the heads of all ranks read, where there are several."""

    mixed: Matrix
    gate: Matrix
    ba: Matrix
    taps: Vector
    decay: Vector
    dt_bias: Vector
    norm: Vector
    output: Linear
    gathered: Parts = ()


@dataclass(frozen=True)
class Mixture:
    """Experts by router score, and one that all tokens share, behind a gate of one column."""

    routed: MixtureOfExperts
    shared: SiluFeedForward
    shared_gate: Matrix

    def __call__(self, ops: Ops, x: Value) -> Value:
        shared = ops.sigmoid_mul(self.shared(ops, x), ops.linear(x, self.shared_gate))
        return ops.add(self.routed(ops, x), shared)


@dataclass(frozen=True)
class Layer:
    mixer_norm: Vector
    mixer: Attention | DeltaNet
    ffn_norm: Vector
    ffn: SiluFeedForward | Mixture


@dataclass(frozen=True)
class MtpHead:
    """A layer over the next token's embedding and the model's normed output for this one, each with its own norm and linear."""

    embedding_norm: Vector
    hidden_norm: Vector
    from_embedding: Linear
    from_hidden: Linear
    layer: Layer
    norm: Vector


@dataclass
class Hybrid:
    """`layers` counts those with KV; `recurrent` says what the others hold. Of a rank's shard, its heads."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    rope: Rope
    recurrent: RecurrentShape
    vocabulary: Vocabulary
    blocks: list[Layer]
    norm: Vector
    mtp: MtpHead | None

    def forward(self, ops: Ops) -> Value:
        x = self.vocabulary.embed(ops)
        attention_index = recurrent_index = 0
        for layer in self.blocks:
            normed = ops.rms_norm(x, layer.mixer_norm, self.eps)
            if isinstance(layer.mixer, Attention):
                mixed = self._attend(ops, normed, layer.mixer, attention_index)
                attention_index += 1
            else:
                mixed = self._recur(ops, normed, layer.mixer, recurrent_index)
                recurrent_index += 1
            x = self._feed_forward(ops, ops.add(x, mixed), layer)
        return self.vocabulary.logits(ops, ops.rms_norm(ops.gather_logit_rows(x), self.norm, self.eps))

    def mtp_forward(self, ops: Ops, hidden: Value, embedded: Value) -> Value:
        """Logits (R, V) of the token after the next. `hidden`: the model's output behind its last norm (N E); `embedded`: the
        embedding of the token that follows (N E). Its layer's KV lies behind that of the others."""
        assert self.mtp is not None and isinstance(self.mtp.layer.mixer, Attention), "the model has no MTP head"
        from_embedding = self.mtp.from_embedding(ops, ops.rms_norm(embedded, self.mtp.embedding_norm, self.eps))
        from_hidden = self.mtp.from_hidden(ops, ops.rms_norm(hidden, self.mtp.hidden_norm, self.eps))
        x, layer = ops.add(from_embedding, from_hidden), self.mtp.layer
        mixed = self._attend(ops, ops.rms_norm(x, layer.mixer_norm, self.eps), self.mtp.layer.mixer, self.layers)
        x = ops.gather_logit_rows(self._feed_forward(ops, ops.add(x, mixed), layer))
        return self.vocabulary.logits(ops, ops.rms_norm(x, self.mtp.norm, self.eps))

    def _attend(self, ops: Ops, x: Value, weights: Attention, index: int) -> Value:
        qkv = ops.linear(x, weights.qkv)
        shape = (self.heads, self.kv_heads, self.head_dim)
        qkv = ops.norm_heads(qkv, weights.q_norm, weights.k_norm, *shape, self.eps)
        q = ops.rope_kv_write(qkv, index, *shape, self.rope)
        attended = ops.sigmoid_mul(ops.attention(q, index, *shape), ops.linear(x, weights.gate))
        if weights.gathered:
            attended = ops.all_gather(attended, [weights.gathered])
        return weights.output(ops, attended)

    def _recur(self, ops: Ops, x: Value, weights: DeltaNet, index: int) -> Value:
        mixed = ops.causal_conv_update(ops.linear(x, weights.mixed), weights.taps, index)
        gates = ops.gdn_gating(ops.linear(x, weights.ba), weights.decay, weights.dt_bias)
        read = ops.recurrent_update(mixed, gates, index)
        normed = ops.gated_rms_norm(read, ops.linear(x, weights.gate), weights.norm, self.eps)
        if weights.gathered:
            normed = ops.all_gather(normed, weights.gathered)
        return weights.output(ops, normed)

    def _feed_forward(self, ops: Ops, x: Value, layer: Layer) -> Value:
        """x and what the layer's second half adds to it."""
        return ops.add(x, layer.ffn(ops, ops.rms_norm(x, layer.ffn_norm, self.eps)))
