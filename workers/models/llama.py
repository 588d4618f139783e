"""Llama 2 and 3 (Touvron et al. 2023), Mistral (Jiang et al. 2023), SmolLM2, and what else is built as they are.

A GGUF of this architecture stores query and key rows so that rotary pairs are neighbours (2 i, 2 i + 1). Of the two sources only
a Hugging Face config can state Mistral's sliding window; a GGUF may all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of
from workers.layers import rope
from workers.layers.decoder import Decoder, load_gated_decoder
from workers.layers.weights import GGUF_NAMES, HF_NAMES, Weights
from workers.ops.protocol import Ops, Rope
from workers.weights.tensors import Tensors


@dataclass(frozen=True)
class LlamaConfig:
    shape: Shape
    rope: Rope
    window: int  # of every layer; 0 is all

    @classmethod
    def from_gguf(cls, file: Checkpoint, tensors: Tensors) -> LlamaConfig:
        fields = fields_of(file)
        shape = Shape.of(fields)
        window = fields.get("attention.sliding_window", int, 0)
        return cls(shape, rope.from_gguf(fields, tensors, shape, neox=False), window)

    @classmethod
    def from_hf(cls, file: Checkpoint) -> LlamaConfig:
        fields = fields_of(file)
        fields.expect("hidden_act", "silu")
        shape = Shape.of(fields)
        window = fields.optional("sliding_window", int) if file.get("model_type", str) == "mistral" else None
        return cls(shape, rope.from_hf(fields, shape, base=10000.0), window or 0)


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Decoder:
    gguf = file.format == "gguf"
    config = LlamaConfig.from_gguf(file, tensors) if gguf else LlamaConfig.from_hf(file)
    weights, shape = Weights(tensors, GGUF_NAMES if gguf else HF_NAMES, ops), config.shape
    return load_gated_decoder(weights, shape, (config.rope,) * shape.layers, (config.window,) * shape.layers)
