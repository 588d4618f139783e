"""Qwen3 with mixtures of experts (Yang et al. 2025), in some or all of its layers."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of
from workers.layers import rope
from workers.layers.attention import Attention
from workers.layers.decoder import Block, Decoder
from workers.layers.feed_forward import FeedForward, SiluFeedForward, load_mixture
from workers.layers.weights import Weights
from workers.models.qwen3 import QWEN3_GGUF_NAMES, QWEN3_HF_NAMES
from workers.ops.protocol import Ops, Rope
from workers.weights.tensors import Tensors

GGUF_NAMES = {
    **QWEN3_GGUF_NAMES,
    "router": "blk.{layer}.ffn_gate_inp.weight",
    "gate_up_experts": "blk.{layer}.ffn_gate_up_exps.weight",
    "gate_experts": "blk.{layer}.ffn_gate_exps.weight",
    "up_experts": "blk.{layer}.ffn_up_exps.weight",
    "down_experts": "blk.{layer}.ffn_down_exps.weight",
}
HF_NAMES = {
    **QWEN3_HF_NAMES,
    "router": "model.layers.{layer}.mlp.gate.weight",
    "expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
    "expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
    "expert_down": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
}


@dataclass(frozen=True)
class Qwen3MoeConfig:
    """`sparse`: whether a layer's feed-forward is a mixture."""

    shape: Shape
    rope: Rope
    window: int  # of every layer; 0 is all
    sparse: tuple[bool, ...]
    experts: int
    top_k: int
    expert_hidden: int
    normalise: bool

    @classmethod
    def from_gguf(cls, file: Checkpoint, tensors: Tensors) -> Qwen3MoeConfig:
        fields = fields_of(file)
        shape = Shape.of(fields)
        return cls(
            shape=shape,
            rope=rope.from_gguf(fields, tensors, shape, neox=True),
            window=0,
            sparse=(True,) * shape.layers,
            experts=fields.count("expert_count"),
            top_k=fields.count("expert_used_count"),
            expert_hidden=fields.count("expert_feed_forward_length"),
            normalise=fields.get("expert_weights_norm", bool, True),
        )

    @classmethod
    def from_hf(cls, file: Checkpoint) -> Qwen3MoeConfig:
        fields = fields_of(file)
        fields.expect("hidden_act", "silu")
        shape = Shape.of(fields)
        dense, step = fields.get("mlp_only_layers", list, []), fields.count("decoder_sparse_step", 1)
        sliding = fields.get("use_sliding_window", bool, False)
        return cls(
            shape=shape,
            rope=rope.from_hf(fields, shape, base=10000.0),
            window=fields.get("sliding_window", int, 0) if sliding else 0,
            sparse=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(shape.layers)),
            experts=fields.count("num_local_experts" if fields.states("num_local_experts") else "num_experts"),
            top_k=fields.count("num_experts_per_tok"),
            expert_hidden=fields.count("moe_intermediate_size"),
            normalise=fields.get("norm_topk_prob", bool, False),
        )


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Decoder:
    gguf = file.format == "gguf"
    config = Qwen3MoeConfig.from_gguf(file, tensors) if gguf else Qwen3MoeConfig.from_hf(file)
    weights, shape = Weights(tensors, GGUF_NAMES if gguf else HF_NAMES, ops), config.shape

    def feed_forward(layer: int) -> FeedForward:
        if not config.sparse[layer]:
            return SiluFeedForward.load(weights, layer, shape.width, shape.hidden)
        sizes = config.experts, shape.width, config.expert_hidden
        return load_mixture(weights, layer, *sizes, config.top_k, config.normalise)

    def block(layer: int) -> Block:
        attention = Attention.load(weights, shape, layer, config.rope, window=config.window)
        return Block.load(weights, shape, attention, feed_forward(layer))

    return Decoder.load(weights, shape, block)
