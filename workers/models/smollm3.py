"""SmolLM3: a llama in which some layers do not rotate queries and keys (NoPE; Yang et al. 2025).

A GGUF of this architecture stores query and key rows so that rotary pairs are neighbours, and does not state which layers: every
fourth.
"""

from __future__ import annotations

from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of, windows_of_layer_types
from workers.layers import rope
from workers.layers.decoder import Decoder, load_gated_decoder
from workers.layers.weights import GGUF_NAMES, HF_NAMES, Weights
from workers.ops.protocol import Ops, Rope
from workers.weights.tensors import Tensors

NOPE_INTERVAL = 4  # where the file does not say


@dataclass(frozen=True)
class SmolLM3Config:
    shape: Shape
    ropes: tuple[Rope, ...]  # a layer each
    windows: tuple[int, ...]  # a layer each; 0 is all

    @classmethod
    def from_gguf(cls, file: Checkpoint, tensors: Tensors) -> SmolLM3Config:
        fields = fields_of(file)
        shape = Shape.of(fields)
        turning = rope.from_gguf(fields, tensors, shape, neox=False)
        return cls(shape, _ropes(turning, _rotated(shape.layers, NOPE_INTERVAL)), (0,) * shape.layers)

    @classmethod
    def from_hf(cls, file: Checkpoint) -> SmolLM3Config:
        fields = fields_of(file)
        fields.expect("hidden_act", "silu")
        shape = Shape.of(fields)
        rotated = fields.flags("no_rope_layers", shape.layers)
        if rotated is None:
            rotated = _rotated(shape.layers, fields.count("no_rope_layer_interval", NOPE_INTERVAL))
        turning = rope.from_hf(fields, shape, base=2000000.0)
        return cls(shape, _ropes(turning, rotated), windows_of_layer_types(fields, shape.layers) or (0,) * shape.layers)


def _rotated(layers: int, interval: int) -> list[bool]:
    return [(layer + 1) % interval != 0 for layer in range(layers)]


def _ropes(turning: Rope, rotated: list[bool]) -> tuple[Rope, ...]:
    return tuple(turning if flag else rope.NO_ROPE for flag in rotated)


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Decoder:
    gguf = file.format == "gguf"
    config = SmolLM3Config.from_gguf(file, tensors) if gguf else SmolLM3Config.from_hf(file)
    weights, shape = Weights(tensors, GGUF_NAMES if gguf else HF_NAMES, ops), config.shape
    return load_gated_decoder(weights, shape, config.ropes, config.windows)
