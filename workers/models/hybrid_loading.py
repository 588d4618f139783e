"""The weights of a hybrid model by the names of its file's format, whichever of the two architectures it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint
from workers.layers.feed_forward import ExpertParts, MixtureOfExperts, SiluFeedForward
from workers.layers.vocabulary import Vocabulary
from workers.layers.weights import Linear
from workers.models.hybrid import Attention, DeltaNet, Hybrid, Layer, Mixture, MtpHead
from workers.models.hybrid_config import HybridConfig
from workers.models.hybrid_names import Names
from workers.ops.protocol import Expert, Ops, Parts, RawTensor, RecurrentShape, Vector
from workers.weights.reshaping import columns_of, floats, from_floats, rows_in_order
from workers.weights.sharding import GATED_UNIT, GROUP_UNIT, Part
from workers.weights.tensors import Tensors, member_of, rows_of


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

    def rows(self, role: str, part: Part, columns: int) -> RawTensor:
        return self.tensors.take_rows(self.name(role), part, columns)


@dataclass(frozen=True)
class DeltaHeads:
    """Which heads of DeltaNet layers this rank has: whole key heads, `keys`, each with the value heads that read it."""

    whole: RecurrentShape
    keys: Part

    @property
    def values(self) -> NDArray[np.intp]:
        """The value heads, rising."""
        of_value_head = self.whole.key_head_of_value_heads()
        return np.flatnonzero((self.keys.first <= of_value_head) & (of_value_head < self.keys.end))

    @property
    def shape(self) -> RecurrentShape:
        return replace(self.whole, key_heads=self.keys.width, value_heads=len(self.values))

    @property
    def value_rows(self) -> NDArray[np.intp]:
        """Their rows of a weight that makes values, a head after another."""
        return (self.values[:, None] * self.whole.value_dim + np.arange(self.whole.value_dim)).reshape(-1)

    @property
    def channels(self) -> NDArray[np.intp]:
        """Rows of all queries, then keys, then values."""
        dim, keys = self.whole.key_dim, self.whole.key_heads * self.whole.key_dim
        rows = np.arange(self.keys.first * dim, self.keys.end * dim)
        return np.concatenate([rows, keys + rows, 2 * keys + self.value_rows])

    @property
    def read(self) -> Parts:
        """What the heads of all ranks read, as it is gathered."""
        share = self.whole.value_heads // self.whole.key_heads
        turns, together = (share, 1) if self.whole.tiled else (1, share)
        return () if self.keys.is_whole else [self.keys.times(together * self.whole.value_dim).widths] * turns


@dataclass(frozen=True)
class DeltaInputs:
    """What feeds a rank's heads of a DeltaNet layer: rows of queries, keys and values; of the norm's gate; of b, then a."""

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
        delta_inputs: Callable[[LayerTensors, HybridConfig, DeltaHeads], DeltaInputs],
    ) -> None:
        self.file, self.tensors, self.ops, self.config, self.names = file, tensors, ops, config, names
        self._delta_inputs = delta_inputs
        self._kv_heads = tensors.shard.heads(config.kv_heads, "KV heads", file.path)
        self._heads = self._kv_heads.times(config.heads // config.kv_heads)
        self._delta = DeltaHeads(config.recurrent, tensors.shard.heads(config.recurrent.key_heads, "key heads", file.path))

    def load(self) -> Hybrid:
        config, names, tensors = self.config, self.names, self.tensors
        table = {"embedding": names.embedding, "head": names.head}
        return Hybrid(
            layers=config.attention_layers,
            heads=self._heads.width,
            kv_heads=self._kv_heads.width,
            head_dim=config.head_dim,
            vocab=config.vocab,
            context=config.context,
            eps=config.eps,
            rope=config.rope,
            recurrent=self._delta.shape,
            vocabulary=Vocabulary.load(
                self.ops,
                tensors.shard,
                config.vocab,
                lambda role, part: tensors.take_rows(table[role], part, config.width),
                tied=names.head not in tensors,
            ),
            blocks=[self._layer(names.layer.format(index), recurs) for index, recurs in enumerate(config.recurs)],
            norm=self._norm(names.norm, config.width),
            mtp=self._mtp() if config.mtp_layers else None,
        )

    def _norm(self, name: str, width: int) -> Vector:
        weight = self.tensors.take(name, (width,))
        return self.ops.vector(weight if self.names.converted else from_floats(name, 1 + floats(weight)))

    def _gathered(self, tensors: LayerTensors, role: str, outputs: int, inputs: int) -> Linear:
        """A linear whose outputs are shared out between the ranks, and gathered."""
        part = self.tensors.shard.part(outputs, GROUP_UNIT)
        matrix = self.ops.matrix([tensors.rows(role, part, inputs)])
        return Linear(matrix, gathered=() if part.is_whole else part.widths)

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
        config, ops, dim = self.config, self.ops, self.config.head_dim
        both = tensors.take("q", 2 * config.heads * dim, config.width)
        rows = np.arange(2 * config.heads * dim).reshape(config.heads, 2, dim)[self._heads.first : self._heads.end]
        query, gate = (rows_in_order(both, rows[:, side].reshape(-1)) for side in (0, 1))
        key, value = (tensors.rows(role, self._kv_heads.times(dim), config.width) for role in ("k", "v"))
        return Attention(
            qkv=ops.matrix([query, key, value]),
            gate=ops.matrix([gate]),
            q_norm=self._norm(tensors.name("q_norm"), dim),
            k_norm=self._norm(tensors.name("k_norm"), dim),
            output=self._gathered(tensors, "attention_output", config.width, config.heads * dim),
            gathered=() if self._heads.is_whole else self._heads.times(dim).widths,
        )

    def _delta_net(self, tensors: LayerTensors) -> DeltaNet:
        config, ops, shape, here = self.config, self.ops, self.config.recurrent, self._delta
        inputs = self._delta_inputs(tensors, config, here)
        decay, dt_bias = (floats(tensors.take(role, shape.value_heads))[here.values] for role in ("decay", "dt_bias"))
        if not self.names.converted:
            decay = -np.exp(decay)
        return DeltaNet(
            mixed=ops.matrix(inputs.mixed),
            gate=ops.matrix(inputs.gate),
            ba=ops.matrix(inputs.ba),
            taps=ops.vector(from_floats(tensors.name("taps"), self._taps(tensors)[:, here.channels])),
            decay=ops.vector(from_floats(tensors.name("decay"), decay)),
            dt_bias=ops.vector(from_floats(tensors.name("dt_bias"), dt_bias)),
            norm=ops.vector(tensors.take("delta_norm", shape.value_dim)),
            output=self._gathered(tensors, "delta_output", config.width, shape.value_heads * shape.value_dim),
            gathered=here.read,
        )

    def _taps(self, tensors: LayerTensors) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """(kernel, channels); a file has channels first, and Hugging Face's a dimension of 1 between."""
        shape = self.config.recurrent
        middle = () if self.names.converted else (1,)
        weight = floats(tensors.take("taps", shape.channels, *middle, shape.kernel))
        return np.ascontiguousarray(weight.reshape(shape.channels, shape.kernel).T)

    def _dense(self, tensors: LayerTensors, prefix: str, hidden: int) -> SiluFeedForward:
        width, between = self.config.width, self.tensors.shard.part(hidden, GATED_UNIT)
        gate_up = self.ops.matrix([tensors.rows(f"{prefix}ffn_{side}", between, width) for side in ("gate", "up")])
        down = self._gathered(tensors, f"{prefix}ffn_down", width, hidden)
        return SiluFeedForward(Linear(gate_up), down, () if between.is_whole else between.widths)

    def _mixture(self, tensors: LayerTensors) -> Mixture:
        config, width = self.config, self.config.width
        if not config.top_k:
            raise ModelFileError(f"{self.file.path}: it has experts, but does not say how many a token uses")
        gate_shape = (width,) if self.names.converted else (1, width)
        gate = tensors.take("shared_gate", *gate_shape)
        parts = ExpertParts.of(self.tensors.shard, width, config.expert_hidden)
        routed = MixtureOfExperts(
            router=Linear(self.ops.matrix([tensors.take("router", config.experts, width)])),
            experts=self._experts(tensors, parts),
            top_k=config.top_k,
            normalise=config.normalise,
            hidden=() if parts.hidden.is_whole else parts.hidden.widths,
            gathered=() if parts.width.is_whole else parts.width.widths,
        )
        return Mixture(
            routed=routed,
            shared=self._dense(tensors, "shared_", config.shared_hidden),
            shared_gate=self.ops.matrix([RawTensor(gate.name, gate.type, (1, width), gate.data)]),
        )

    def _experts(self, tensors: LayerTensors, parts: ExpertParts) -> tuple[Expert, ...]:
        """Experts lie in one tensor, gate and up together or apart, or in a tensor each."""
        hidden, width = self.config.expert_hidden, self.config.width
        downs = self._of_experts(tensors, "experts_down", parts.width, hidden)
        if tensors.has("experts_gate_up"):
            both = self._of_experts(tensors, "experts_gate_up", Part((2 * hidden,)), width)
            sides = [[parts.gate_up(rows_of(rows, first, first + hidden)) for rows in both] for first in (0, hidden)]
        else:
            sides = [self._of_experts(tensors, role, parts.hidden, width) for role in ("experts_gate", "experts_up")]
        gates, ups = sides
        return tuple(
            Expert(self.ops.matrix([gate, up]), self.ops.matrix([down])) for gate, up, down in zip(gates, ups, downs, strict=True)
        )

    def _of_experts(self, tensors: LayerTensors, role: str, part: Part, columns: int) -> list[RawTensor]:
        """The rows of `part` of each expert's weight. A tensor of all experts is taken once: it may be made as it is read."""
        if tensors.has(f"{role}_together"):
            role = f"{role}_together"
        name, count = tensors.name(role), self.config.experts
        if "{}" in name:
            return [self.tensors.take_rows(name.format(index), part, columns) for index in range(count)]
        together = self.tensors.take(name, (count, part.total, columns))
        return [rows_of(member_of(together, index), part.first, part.end) for index in range(count)]

    def _mtp(self) -> MtpHead:
        names, width = self.names.mtp, self.config.width
        both = self.tensors.take(names.fc, (width, 2 * width))
        part = self.tensors.shard.part(width, GROUP_UNIT)
        from_embedding, from_hidden = (
            Linear(
                self.ops.matrix([columns_of(rows_of(both, part.first, part.end), first, first + width)]),
                gathered=() if part.is_whole else part.widths,
            )
            for first in (0, width)
        )
        return MtpHead(
            embedding_norm=self._norm(names.embedding_norm, width),
            hidden_norm=self._norm(names.hidden_norm, width),
            from_embedding=from_embedding,
            from_hidden=from_hidden,
            layer=self._layer(names.layer, recurs=False),
            norm=self._norm(names.norm, width),
        )
