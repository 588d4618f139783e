"""Weights of one checkpoint by their role in the model, packed as the ops take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from helexa.formats.ggml_types import dequantise
from workers.ops.protocol import Matrix, Ops, RawTensor, Value, Vector
from workers.weights.tensors import Tensors

# Names of the tensors that decoders share; `{layer}` counts from 0. An architecture adds its own to a copy.
GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "blk.{layer}.attn_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "attention_output": "blk.{layer}.attn_output.weight",
    "ffn_norm": "blk.{layer}.ffn_norm.weight",
    "gate": "blk.{layer}.ffn_gate.weight",
    "up": "blk.{layer}.ffn_up.weight",
    "down": "blk.{layer}.ffn_down.weight",
}
HF_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "model.layers.{layer}.input_layernorm.weight",
    "q": "model.layers.{layer}.self_attn.q_proj.weight",
    "k": "model.layers.{layer}.self_attn.k_proj.weight",
    "v": "model.layers.{layer}.self_attn.v_proj.weight",
    "attention_output": "model.layers.{layer}.self_attn.o_proj.weight",
    "ffn_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "up": "model.layers.{layer}.mlp.up_proj.weight",
    "down": "model.layers.{layer}.mlp.down_proj.weight",
}


@dataclass(frozen=True)
class Linear:
    """A weight with its bias, if it has one."""

    weight: Matrix
    bias: Vector | None = None

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Weights:
    """`names` are the source's, by role. `norm_shift` is added to every norm's weight."""

    tensors: Tensors
    names: Mapping[str, str]
    ops: Ops
    norm_shift: float = 0.0

    def raw(self, role: str, shape: tuple[int, ...], layer: int = 0, expert: int = 0) -> RawTensor:
        """ModelFileError where the tensor is missing or of another shape."""
        return self.tensors.take(self.names[role].format(layer=layer, expert=expert), shape)

    def has(self, role: str, layer: int = 0) -> bool:
        return role in self.names and self.names[role].format(layer=layer) in self.tensors

    def matrix(self, role: str, outputs: int, inputs: int, layer: int = 0) -> Matrix:
        return self.ops.matrix([self.raw(role, (outputs, inputs), layer)])

    def linear(self, outputs: Mapping[str, int], inputs: int, layer: int) -> Linear:
        """One linear of the roles and their widths, side by side, with the biases that the file has: of all roles or of none."""
        parts = [self.raw(role, (width, inputs), layer) for role, width in outputs.items()]
        biases = [part.name.removesuffix("weight") + "bias" for part in parts]
        if not any(name in self.tensors for name in biases):
            return Linear(self.ops.matrix(parts))
        taken = [self.tensors.take(name, (width,)) for name, width in zip(biases, outputs.values(), strict=True)]
        return Linear(self.ops.matrix(parts), self.ops.vector(joined(taken)))

    def norm(self, role: str, width: int, layer: int = 0) -> Vector:
        raw = self.raw(role, (width,), layer)
        return self.ops.vector(_shifted(raw, self.norm_shift) if self.norm_shift else raw)

    def head(self, embedding: Matrix, vocab: int, width: int, tied: bool) -> Matrix:
        """The embedding where it serves as the head, else the head's own weight."""
        if tied:
            self.tensors.ignore(self.names["head"])
            return embedding
        return self.matrix("head", vocab, width)


def joined(parts: Sequence[RawTensor]) -> RawTensor:
    """Vectors end to end, as float32."""
    return _float32(parts[0].name, np.concatenate([_values(part) for part in parts]))


def _shifted(raw: RawTensor, shift: float) -> RawTensor:
    return _float32(raw.name, _values(raw) + np.float32(shift))


def _values(raw: RawTensor) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return dequantise(raw.type, raw.data, raw.shape[-1]).reshape(-1)


def _float32(name: str, values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> RawTensor:
    return RawTensor(name, "F32", values.shape, np.ascontiguousarray(values, np.float32).view(np.uint8))
