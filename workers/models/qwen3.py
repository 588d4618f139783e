"""Qwen3 (Yang et al. 2025): queries and keys are normed a head at a time, and heads may be wider than the model divided by them."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of, qwen_windows
from workers.layers import rope
from workers.layers.attention import Attention
from workers.layers.decoder import Block, Decoder
from workers.layers.feed_forward import SiluFeedForward
from workers.layers.weights import GGUF_NAMES, HF_NAMES, Weights
from workers.ops.protocol import Ops, Rope
from workers.weights.tensors import Tensors

QWEN3_GGUF_NAMES = {
    **GGUF_NAMES,
    "q_norm": "blk.{layer}.attn_q_norm.weight",
    "k_norm": "blk.{layer}.attn_k_norm.weight",
}
QWEN3_HF_NAMES = {
    **HF_NAMES,
    "q_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{layer}.self_attn.k_norm.weight",
}


@dataclass(frozen=True)
class Qwen3Config:
    shape: Shape
    rope: Rope
    windows: tuple[int, ...]  # a layer each; 0 is all

    @classmethod
    def from_gguf(cls, file: Checkpoint, tensors: Tensors) -> Qwen3Config:
        fields = fields_of(file)
        shape = Shape.of(fields)
        return cls(shape, rope.from_gguf(fields, tensors, shape, neox=True), (0,) * shape.layers)

    @classmethod
    def from_hf(cls, file: Checkpoint) -> Qwen3Config:
        fields = fields_of(file)
        fields.expect("hidden_act", "silu")
        shape = Shape.of(fields)
        return cls(shape, rope.from_hf(fields, shape, base=10000.0), qwen_windows(fields, shape.layers))


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Decoder:
    gguf = file.format == "gguf"
    config = Qwen3Config.from_gguf(file, tensors) if gguf else Qwen3Config.from_hf(file)
    weights, shape = Weights(tensors, QWEN3_GGUF_NAMES if gguf else QWEN3_HF_NAMES, ops), config.shape

    def block(layer: int) -> Block:
        attention = Attention.load(weights, shape, layer, config.rope, window=config.windows[layer])
        return Block.load(weights, shape, attention, SiluFeedForward.load(weights, layer, shape.width, shape.hidden))

    return Decoder.load(weights, shape, block)
