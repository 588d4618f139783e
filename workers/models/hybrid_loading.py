"""The weights of a hybrid model by the names of its file's format, whichever of the two architectures it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint
from workers.models.hybrid import Attention, DeltaNet, Dense, Hybrid, Layer, Mixture, MtpHead
from workers.models.hybrid_config import HybridConfig
from workers.models.hybrid_names import Names
from workers.ops.protocol import Expert, Ops, RawTensor, Vector
from workers.weights.reshaping import columns_of, floats, from_floats, rows_in_order
from workers.weights.tensors import Tensors, member_of


class LayerTensors:
    """The tensors of one layer, by role."""

    def __init__(self, tensors: Tensors, names: Names, prefix: str) -> None:
        self.tensors, self.names, self.prefix = tensors, names, prefix

    def name(self, role: str) -> str:
        return self.prefix + self.names.parts[role]

    def has(self, role: str) -> bool:
        return role in self.names.parts and self.name(role) in self.tensors

    def take(self, role: str, *shape: int) -> RawTensor:
        return self.tensors.take(self.name(role), shape)


@dataclass(frozen=True)
class DeltaInputs:
    """What feeds a DeltaNet layer: rows of queries, keys and values; of the norm's gate; of b, then a."""

    mixed: list[RawTensor]
    gate: list[RawTensor]
    ba: list[RawTensor]


class HybridLoader:
    """Loads a model whose DeltaNet layers' inputs `delta_inputs` finds in a layer's tensors."""

    def __init__(
        self,
        file: Checkpoint,
        tensors: Tensors,
        ops: Ops,
        config: HybridConfig,
        names: Names,
        delta_inputs: Callable[[LayerTensors, HybridConfig], DeltaInputs],
    ) -> None:
        self.file, self.tensors, self.ops, self.config, self.names = file, tensors, ops, config, names
        self._delta_inputs = delta_inputs

    def load(self) -> Hybrid:
        config, names, tensors = self.config, self.names, self.tensors
        embedding = self.ops.matrix([tensors.take(names.embedding, (config.vocab, config.width))])
        tied = names.head not in tensors
        return Hybrid(
            layers=config.attention_layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab=config.vocab,
            context=config.context,
            eps=config.eps,
            rope=config.rope,
            recurrent=config.recurrent,
            embedding=embedding,
            blocks=[self._layer(names.layer.format(index), recurs) for index, recurs in enumerate(config.recurs)],
            norm=self._norm(names.norm, config.width),
            head=embedding if tied else self.ops.matrix([tensors.take(names.head, (config.vocab, config.width))]),
            mtp=self._mtp() if config.mtp_layers else None,
        )

    def _norm(self, name: str, width: int) -> Vector:
        weight = self.tensors.take(name, (width,))
        return self.ops.vector(weight if self.names.converted else from_floats(name, 1 + floats(weight)))

    def _layer(self, prefix: str, recurs: bool) -> Layer:
        tensors, width = LayerTensors(self.tensors, self.names, prefix), self.config.width
        return Layer(
            mixer_norm=self._norm(tensors.name("mixer_norm"), width),
            mixer=self._delta_net(tensors) if recurs else self._attention(tensors),
            ffn_norm=self._norm(tensors.name("ffn_norm"), width),
            ffn=self._mixture(tensors) if tensors.has("router") else self._dense(tensors, "", self.config.hidden),
        )

    def _attention(self, tensors: LayerTensors) -> Attention:
        """The query linear of a file makes query, then gate, a head."""
        config, ops = self.config, self.ops
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        both = tensors.take("q", 2 * q_width, config.width)
        rows = np.arange(2 * q_width).reshape(config.heads, 2, config.head_dim)
        query, gate = (rows_in_order(both, rows[:, side].reshape(-1)) for side in (0, 1))
        key, value = (tensors.take(role, kv_width, config.width) for role in ("k", "v"))
        return Attention(
            qkv=ops.matrix([query, key, value]),
            gate=ops.matrix([gate]),
            q_norm=self._norm(tensors.name("q_norm"), config.head_dim),
            k_norm=self._norm(tensors.name("k_norm"), config.head_dim),
            output=ops.matrix([tensors.take("attention_output", config.width, q_width)]),
        )

    def _delta_net(self, tensors: LayerTensors) -> DeltaNet:
        config, ops, shape = self.config, self.ops, self.config.recurrent
        inputs = self._delta_inputs(tensors, config)
        decay = floats(tensors.take("decay", shape.value_heads))
        if not self.names.converted:
            decay = -np.exp(decay)
        return DeltaNet(
            mixed=ops.matrix(inputs.mixed),
            gate=ops.matrix(inputs.gate),
            ba=ops.matrix(inputs.ba),
            taps=ops.vector(from_floats(tensors.name("taps"), self._taps(tensors))),
            decay=ops.vector(from_floats(tensors.name("decay"), decay)),
            dt_bias=ops.vector(tensors.take("dt_bias", shape.value_heads)),
            norm=ops.vector(tensors.take("delta_norm", shape.value_dim)),
            output=ops.matrix([tensors.take("delta_output", config.width, shape.value_heads * shape.value_dim)]),
        )

    def _taps(self, tensors: LayerTensors) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """(kernel, channels); a file has channels first, and Hugging Face's a dimension of 1 between."""
        shape = self.config.recurrent
        middle = () if self.names.converted else (1,)
        weight = floats(tensors.take("taps", shape.channels, *middle, shape.kernel))
        return np.ascontiguousarray(weight.reshape(shape.channels, shape.kernel).T)

    def _dense(self, tensors: LayerTensors, prefix: str, hidden: int) -> Dense:
        width = self.config.width
        gate, up = (tensors.take(f"{prefix}ffn_{side}", hidden, width) for side in ("gate", "up"))
        return Dense(self.ops.matrix([gate, up]), self.ops.matrix([tensors.take(f"{prefix}ffn_down", width, hidden)]))

    def _mixture(self, tensors: LayerTensors) -> Mixture:
        config, width = self.config, self.config.width
        if not config.top_k:
            raise ModelFileError(f"{self.file.path}: it has experts, but does not say how many a token uses")
        gate_shape = (width,) if self.names.converted else (1, width)
        gate = tensors.take("shared_gate", *gate_shape)
        return Mixture(
            router=self.ops.matrix([tensors.take("router", config.experts, width)]),
            experts=tuple(self._expert(tensors, index) for index in range(config.experts)),
            top_k=config.top_k,
            normalise=config.normalise,
            shared=self._dense(tensors, "shared_", config.shared_hidden),
            shared_gate=self.ops.matrix([RawTensor(gate.name, gate.type, (1, width), gate.data)]),
        )

    def _expert(self, tensors: LayerTensors, index: int) -> Expert:
        """Experts lie in one tensor, gate and up together or apart, or in a tensor each."""
        down = self._expert_part(tensors, "experts_down", index, self.config.width, self.config.expert_hidden)
        if tensors.has("experts_gate_up"):
            hidden = 2 * self.config.expert_hidden
            sides = [self._expert_part(tensors, "experts_gate_up", index, hidden, self.config.width)]
        else:
            shape = (self.config.expert_hidden, self.config.width)
            sides = [self._expert_part(tensors, role, index, *shape) for role in ("experts_gate", "experts_up")]
        return Expert(self.ops.matrix(sides), self.ops.matrix([down]))

    def _expert_part(self, tensors: LayerTensors, role: str, index: int, rows: int, columns: int) -> RawTensor:
        if tensors.has(f"{role}_together"):
            role = f"{role}_together"
        name = tensors.name(role)
        if "{}" in name:
            return self.tensors.take(name.format(index), (rows, columns))
        return member_of(self.tensors.take(name, (self.config.experts, rows, columns)), index)

    def _mtp(self) -> MtpHead:
        names, width = self.names.mtp, self.config.width
        both = self.tensors.take(names.fc, (width, 2 * width))
        from_embedding, from_hidden = (self.ops.matrix([columns_of(both, first, first + width)]) for first in (0, width))
        return MtpHead(
            embedding_norm=self._norm(names.embedding_norm, width),
            hidden_norm=self._norm(names.hidden_norm, width),
            from_embedding=from_embedding,
            from_hidden=from_hidden,
            layer=self._layer(names.layer, recurs=False),
            norm=self._norm(names.norm, width),
        )
