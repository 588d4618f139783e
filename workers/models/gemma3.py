"""Gemma 2 and 3, text (Gemma Team 2024 and 2025): sub-layers are normed before and after, layers alternate between a sliding
window and all positions, and the embedding is scaled by sqrt(E). Gemma 2 caps scores and logits softly; Gemma 3 norms queries and
keys, and rotates layers with a window by another base.

A Hugging Face checkpoint stores norm weights less 1, a GGUF as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of, windows_of_layer_types
from helexa.formats.fields import Fields
from workers.layers import rope
from workers.layers.attention import Attention, local_heads
from workers.layers.decoder import load_vocabulary
from workers.layers.feed_forward import GeluFeedForward
from workers.layers.vocabulary import Vocabulary
from workers.layers.weights import Weights
from workers.models.qwen3 import QWEN3_GGUF_NAMES, QWEN3_HF_NAMES
from workers.ops.protocol import Ops, Rope, Value, Vector
from workers.weights.tensors import Tensors

GGUF_NAMES = {
    **QWEN3_GGUF_NAMES,
    "post_attention_norm": "blk.{layer}.post_attention_norm.weight",
    "post_ffn_norm": "blk.{layer}.post_ffw_norm.weight",
}
HF_NAMES = {
    **QWEN3_HF_NAMES,
    "post_attention_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "ffn_norm": "model.layers.{layer}.pre_feedforward_layernorm.weight",
    "post_ffn_norm": "model.layers.{layer}.post_feedforward_layernorm.weight",
}
# Where the language model of a checkpoint that also sees images may lie, and what else lies there.
HF_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
HF_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


@dataclass(frozen=True)
class Variant:
    """What files of one architecture leave out. Every `pattern`-th layer sees all positions. The largest model, told in a GGUF by
    its `wide_layers` layers, scales scores by the width of a head had E been divided evenly."""

    pattern: int
    window: int
    local_base: float | None  # of the rotary embedding in layers with a window; None is that of the others
    score_cap: float | None  # None where scores are never capped
    logit_cap: float
    wide_layers: int


VARIANTS = {
    "gemma2": Variant(pattern=2, window=4096, local_base=None, score_cap=50.0, logit_cap=30.0, wide_layers=46),
    "gemma3": Variant(pattern=6, window=0, local_base=10000.0, score_cap=None, logit_cap=0.0, wide_layers=62),
}


@dataclass(frozen=True)
class GemmaConfig:
    shape: Shape
    global_rope: Rope
    local_rope: Rope  # of layers with a window
    windows: tuple[int, ...]  # a layer each; 0 is all
    scale: float  # of scores
    score_cap: float  # 0 is none
    logit_cap: float

    @classmethod
    def from_gguf(cls, file: Checkpoint, tensors: Tensors) -> GemmaConfig:
        fields, variant = fields_of(file), VARIANTS[file.get("general.architecture", str)]
        shape = Shape.of(fields)
        window = fields.get("attention.sliding_window", int, variant.window)
        slides = _slides(fields, "attention.sliding_window_pattern", shape.layers, variant)
        turning = rope.from_gguf(fields, tensors, shape, neox=True)
        base = fields.get("rope.freq_base_swa", float, variant.local_base)
        width = shape.width // shape.heads if shape.layers == variant.wide_layers else shape.head_dim
        return cls(
            shape=shape,
            global_rope=turning,
            local_rope=turning if base is None else Rope(rope.inverse_frequencies(base, shape.head_dim), neox=True),
            windows=tuple(window if flag else 0 for flag in slides),
            scale=fields.get("attention.scale", float, width**-0.5),
            score_cap=_score_cap(fields, fields.get("attn_logit_softcapping", float, variant.score_cap), variant),
            logit_cap=fields.get("final_logit_softcapping", float, variant.logit_cap),
        )

    @classmethod
    def from_hf(cls, file: Checkpoint) -> GemmaConfig:
        fields, variant = fields_of(file), VARIANTS[file.get("model_type", str).removesuffix("_text")]
        fields.expect("hidden_activation", "gelu_pytorch_tanh")
        if fields.get("use_bidirectional_attention", bool, False):
            raise fields.error("use_bidirectional_attention", True, "is not served")
        shape = Shape.of(fields)
        windows = windows_of_layer_types(fields, shape.layers)
        if windows is None:
            slides = _slides(fields, "sliding_window_pattern", shape.layers, variant)
            windows = tuple(fields.count("sliding_window") if flag else 0 for flag in slides)
        global_rope, local_rope = _hf_ropes(fields, shape, variant)
        return cls(
            shape=shape,
            global_rope=global_rope,
            local_rope=local_rope,
            windows=windows,
            scale=fields.get("query_pre_attn_scalar", float) ** -0.5,
            score_cap=_score_cap(fields, fields.optional("attn_logit_softcapping", float), variant),
            logit_cap=fields.optional("final_logit_softcapping", float) or 0.0,
        )


def _score_cap(fields: Fields, stated: float | None, variant: Variant) -> float:
    if stated and variant.score_cap is None:
        raise fields.error("attn_logit_softcapping", stated, "is not part of this architecture, which norms queries and keys")
    return stated or 0.0


def _slides(fields: Fields, key: str, layers: int, variant: Variant) -> list[bool]:
    """Whether each layer has a window, by a flag a layer, or by every how many layers one has none."""
    flags = fields.flags(key, layers)
    every = fields.count(key, variant.pattern) if flags is None else 0
    return flags if flags is not None else [(layer + 1) % every != 0 for layer in range(layers)]


def _hf_ropes(fields: Fields, shape: Shape, variant: Variant) -> tuple[Rope, Rope]:
    """Of layers that see all, and of layers with a window. Newer configs have a table each; a scaling is for the former alone."""
    base = fields.get("rope_theta", float)
    tables = fields.get("rope_parameters", dict, {})
    if variant.local_base is None:
        turning = rope.from_hf(fields, shape, base)
        return turning, turning
    if tables:
        pairs = ("full_attention", base), ("sliding_attention", variant.local_base)
        whole, local = (rope.from_table(fields, shape, tables.get(kind) or {}, usual) for kind, usual in pairs)
        return whole, local
    local_base = fields.get("rope_local_base_freq", float, variant.local_base)
    return rope.from_hf(fields, shape, base), rope.from_table(fields, shape, {}, local_base)


@dataclass(frozen=True)
class GemmaBlock:
    attention_norm: Vector
    attention: Attention
    post_attention_norm: Vector
    ffn_norm: Vector
    feed_forward: GeluFeedForward
    post_ffn_norm: Vector


@dataclass(frozen=True, eq=False)
class Gemma:
    """A loaded model; see `Model` in workers/models/registry.py."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    config: GemmaConfig
    vocabulary: Vocabulary
    blocks: tuple[GemmaBlock, ...]
    norm: Vector

    def forward(self, ops: Ops) -> Value:
        eps = self.config.shape.eps
        x = ops.scale(self.vocabulary.embed(ops), math.sqrt(self.config.shape.width))
        for block in self.blocks:
            attended = block.attention(ops, ops.rms_norm(x, block.attention_norm, eps))
            x = ops.add(x, ops.rms_norm(attended, block.post_attention_norm, eps))
            fed = block.feed_forward(ops, ops.rms_norm(x, block.ffn_norm, eps))
            x = ops.add(x, ops.rms_norm(fed, block.post_ffn_norm, eps))
        return self.vocabulary.logits(ops, ops.rms_norm(ops.gather_logit_rows(x), self.norm, eps), self.config.logit_cap)


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Gemma:
    if file.format == "gguf":
        config, weights = GemmaConfig.from_gguf(file, tensors), Weights(tensors, GGUF_NAMES, ops)
    else:
        config, weights = GemmaConfig.from_hf(file), Weights(tensors, _hf_names(tensors), ops, norm_shift=1.0)
    shape = config.shape
    local = local_heads(weights, shape)
    return Gemma(
        layers=shape.layers,
        heads=local.heads.width,
        kv_heads=local.kv_heads.width,
        head_dim=shape.head_dim,
        vocab=shape.vocab,
        context=shape.context,
        config=config,
        vocabulary=load_vocabulary(weights, shape),
        blocks=tuple(_block(weights, config, layer) for layer in range(shape.layers)),
        norm=weights.norm("norm", shape.width),
    )


def _block(weights: Weights, config: GemmaConfig, layer: int) -> GemmaBlock:
    shape, window = config.shape, config.windows[layer]
    turning = config.local_rope if window else config.global_rope
    roles = ("attention_norm", "post_attention_norm", "ffn_norm", "post_ffn_norm")
    norms = {role: weights.norm(role, shape.width, layer) for role in roles}
    return GemmaBlock(
        attention=Attention.load(weights, shape, layer, turning, scale=config.scale, window=window, soft_cap=config.score_cap),
        feed_forward=GeluFeedForward.load(weights, layer, shape.width, shape.hidden),
        **norms,
    )


def _hf_names(tensors: Tensors) -> dict[str, str]:
    """The names of the language model, wherever it lies; what sees images is left aside."""
    for name in tensors.file.tensors:
        if name.startswith(HF_VISION):
            tensors.ignore(name)
    present = (prefix for prefix in HF_PREFIXES if f"{prefix}embed_tokens.weight" in tensors)
    prefix = next(present, HF_PREFIXES[0])
    return {role: prefix + name.removeprefix("model.") if role != "head" else name for role, name in HF_NAMES.items()}
