"""Weights of one checkpoint by their role in the model, packed as the ops take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from helexa.formats.ggml_types import dequantise
from workers.ops.protocol import Matrix, Ops, RawTensor, Value, Vector
from workers.weights.sharding import GROUP_UNIT, Part, Shard
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
    """A weight with its bias, if it has one. `gathered`: the columns of each rank, where a rank makes some and all are wanted."""

    weight: Matrix
    bias: Vector | None = None
    gathered: tuple[int, ...] = ()

    def __call__(self, ops: Ops, x: Value) -> Value:
        made = ops.linear(x, self.weight, self.bias)
        return ops.all_gather(made, [self.gathered]) if self.gathered else made


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

    @property
    def shard(self) -> Shard:
        return self.tensors.shard

    def rows(self, role: str, part: Part, inputs: int, layer: int = 0, expert: int = 0) -> RawTensor:
        """The rows of `part` of a role's weight. As `raw`."""
        return self.tensors.take_rows(self.names[role].format(layer=layer, expert=expert), part, inputs)

    def linear(self, outputs: Mapping[str, Part], inputs: int, layer: int) -> Linear:
        """One linear of the roles' parts, side by side, with the biases that the file has: of all roles or of none."""
        rows = [self.rows(role, part, inputs, layer) for role, part in outputs.items()]
        biases = [self.names[role].format(layer=layer).removesuffix("weight") + "bias" for role in outputs]
        if not any(name in self.tensors for name in biases):
            return Linear(self.ops.matrix(rows))
        values = [
            _values(self.tensors.take(name, (part.total,)))[part.first : part.end]
            for name, part in zip(biases, outputs.values(), strict=True)
        ]
        return Linear(self.ops.matrix(rows), self.ops.vector(_float32(biases[0], np.concatenate(values))))

    def gathered(self, role: str, outputs: int, inputs: int, layer: int) -> Linear:
        """A linear whose outputs are shared out between the ranks, and gathered."""
        part = self.shard.part(outputs, GROUP_UNIT)
        made = self.linear({role: part}, inputs, layer)
        return made if part.is_whole else replace(made, gathered=part.widths)

    def norm(self, role: str, width: int, layer: int = 0) -> Vector:
        raw = self.raw(role, (width,), layer)
        return self.ops.vector(_shifted(raw, self.norm_shift) if self.norm_shift else raw)


def _shifted(raw: RawTensor, shift: float) -> RawTensor:
    return _float32(raw.name, _values(raw) + np.float32(shift))


def _values(raw: RawTensor) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return dequantise(raw.type, raw.data, raw.shape[-1]).reshape(-1)


def _float32(name: str, values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> RawTensor:
    return RawTensor(name, "F32", values.shape, np.ascontiguousarray(values, np.float32).view(np.uint8))
