"""Self-attention of one layer, with shared KV heads (Ainslie et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.errors import ModelFileError
from helexa.formats.decoder_shape import Shape
from workers.layers.weights import Linear, Weights
from workers.ops.protocol import Ops, Rope, Value, Vector
from workers.weights.sharding import Part


@dataclass(frozen=True)
class HeadNorms:
    """Norms of queries and keys, a head at a time, before they are rotated."""

    q: Vector
    k: Vector
    eps: float


@dataclass(frozen=True)
class LocalHeads:
    """The heads that this rank has: whole KV heads, each with the queries that read it."""

    heads: Part
    kv_heads: Part


def local_heads(weights: Weights, shape: Shape) -> LocalHeads:
    """ModelFileError where there are more ranks than KV heads."""
    kv_heads = weights.shard.heads(shape.kv_heads, "KV heads", weights.tensors.file.path)
    return LocalHeads(kv_heads.times(shape.heads // shape.kv_heads), kv_heads)


@dataclass(frozen=True)
class Attention:
    """`scale`, `window` and `soft_cap` as in Ops.attention. `layer` is which part of the KV cache it writes. `heads` and `kv_heads`
    are this rank's; where there are other ranks, `gathered` is how wide all heads of each are."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear
    output: Linear
    rope: Rope
    norms: HeadNorms | None = None
    scale: float | None = None
    window: int = 0
    soft_cap: float = 0.0
    gathered: tuple[int, ...] = ()

    @classmethod
    def load(
        cls,
        weights: Weights,
        shape: Shape,
        layer: int,
        rope: Rope,
        *,
        scale: float | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Attention:
        """The layer's weights, with the biases and head norms that the file has."""
        if window < 0:
            raise ModelFileError(f"{weights.tensors.file.path}: a sliding window of {window} positions is none; 0 is all")
        local = local_heads(weights, shape)
        queries, keys = local.heads.times(shape.head_dim), local.kv_heads.times(shape.head_dim)
        norms = None
        if weights.has("q_norm", layer):
            q, k = (weights.norm(role, shape.head_dim, layer) for role in ("q_norm", "k_norm"))
            norms = HeadNorms(q, k, shape.eps)
        return cls(
            layer=layer,
            heads=local.heads.width,
            kv_heads=local.kv_heads.width,
            head_dim=shape.head_dim,
            qkv=weights.linear({"q": queries, "k": keys, "v": keys}, shape.width, layer),
            output=weights.gathered("attention_output", shape.width, shape.q_width, layer),
            rope=rope,
            norms=norms,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
            gathered=() if queries.is_whole else queries.widths,
        )

    def __call__(self, ops: Ops, x: Value) -> Value:
        shape = self.heads, self.kv_heads, self.head_dim
        qkv = self.qkv(ops, x)
        if self.norms is not None:
            qkv = ops.norm_heads(qkv, self.norms.q, self.norms.k, *shape, self.norms.eps)
        q = ops.rope_kv_write(qkv, self.layer, *shape, self.rope)
        attended = ops.attention(q, self.layer, *shape, scale=self.scale, window=self.window, soft_cap=self.soft_cap)
        if self.gathered:
            attended = ops.all_gather(attended, [self.gathered])
        return self.output(ops, attended)
