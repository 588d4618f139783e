"""Qwen2 and Qwen2.5 (Yang et al. 2024): a llama whose queries, keys and values have biases, and whose upper layers may look only
some way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of, qwen_windows
from workers.layers import rope
from workers.layers.decoder import Decoder, load_gated_decoder
from workers.layers.weights import GGUF_NAMES, HF_NAMES, Weights
from workers.ops.protocol import Ops, Rope
from workers.weights.tensors import Tensors


@dataclass(frozen=True)
class Qwen2Config:
    shape: Shape
    rope: Rope
    windows: tuple[int, ...]  # a layer each; 0 is all

    @classmethod
    def from_gguf(cls, file: Checkpoint, tensors: Tensors) -> Qwen2Config:
        fields = fields_of(file)
        shape = Shape.of(fields)
        return cls(shape, rope.from_gguf(fields, tensors, shape, neox=True), (0,) * shape.layers)

    @classmethod
    def from_hf(cls, file: Checkpoint) -> Qwen2Config:
        fields = fields_of(file)
        fields.expect("hidden_act", "silu")
        shape = Shape.of(fields)
        return cls(shape, rope.from_hf(fields, shape, base=10000.0), qwen_windows(fields, shape.layers))


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Decoder:
    return load_with_names(file, tensors, ops, GGUF_NAMES if file.format == "gguf" else HF_NAMES)


def load_with_names(file: Checkpoint, tensors: Tensors, ops: Ops, names: Mapping[str, str]) -> Decoder:
    config = Qwen2Config.from_gguf(file, tensors) if file.format == "gguf" else Qwen2Config.from_hf(file)
    weights, shape = Weights(tensors, names, ops), config.shape
    return load_gated_decoder(weights, shape, (config.rope,) * shape.layers, config.windows)
