"""Feed-forwards of one layer: gated linears (Shazeer 2020), and mixtures of such experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from workers.layers.weights import Linear, Weights
from workers.ops.protocol import Expert, Ops, RawTensor, Value
from workers.weights.sharding import GATED_UNIT, GROUP_UNIT, Part, Shard
from workers.weights.tensors import member_of, rows_of


class FeedForward(Protocol):
    def __call__(self, ops: Ops, x: Value) -> Value: ...


@dataclass(frozen=True)
class SiluFeedForward:
    """`gathered`: how many columns between the two linears each rank makes, where there are several."""

    gate_up: Linear
    down: Linear
    gathered: tuple[int, ...] = ()

    @classmethod
    def load(cls, weights: Weights, layer: int, width: int, hidden: int) -> SiluFeedForward:
        return cls(*_gated(weights, layer, width, hidden))

    def __call__(self, ops: Ops, x: Value) -> Value:
        between = ops.silu_mul(self.gate_up(ops, x))
        return self.down(ops, ops.all_gather(between, [self.gathered]) if self.gathered else between)


@dataclass(frozen=True)
class GeluFeedForward:
    """`gathered`: how many columns between the two linears each rank makes, where there are several."""

    gate_up: Linear
    down: Linear
    gathered: tuple[int, ...] = ()

    @classmethod
    def load(cls, weights: Weights, layer: int, width: int, hidden: int) -> GeluFeedForward:
        return cls(*_gated(weights, layer, width, hidden))

    def __call__(self, ops: Ops, x: Value) -> Value:
        between = ops.gelu_tanh_mul(self.gate_up(ops, x))
        return self.down(ops, ops.all_gather(between, [self.gathered]) if self.gathered else between)


@dataclass(frozen=True)
class MixtureOfExperts:
    """`top_k`, `normalise` and `hidden` as in Ops.moe_ffn. Every rank has all scores, and of each expert a share of the columns of
    both linears; where there are several, `gathered` is how many columns of the result each makes."""

    router: Linear
    experts: tuple[Expert, ...]
    top_k: int
    normalise: bool
    hidden: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()

    def __call__(self, ops: Ops, x: Value) -> Value:
        if not self.gathered:
            return ops.moe_ffn(x, self.router(ops, x), self.experts, self.top_k, self.normalise)
        made = ops.moe_ffn(x, self.router(ops, x), self.experts, self.top_k, self.normalise, self.hidden)
        return ops.all_gather(made, [self.gathered])


def _gated(weights: Weights, layer: int, width: int, hidden: int) -> tuple[Linear, Linear, tuple[int, ...]]:
    between = weights.shard.part(hidden, GATED_UNIT)
    gate_up = weights.linear({"gate": between, "up": between}, width, layer)
    return gate_up, weights.gathered("down", width, hidden, layer), () if between.is_whole else between.widths


@dataclass(frozen=True)
class ExpertParts:
    """What a rank has of each expert: of the columns between its two linears, and of those behind them."""

    hidden: Part
    width: Part

    @classmethod
    def of(cls, shard: Shard, width: int, hidden: int) -> ExpertParts:
        return cls(shard.part(hidden, GATED_UNIT), shard.part(width, GROUP_UNIT))

    def gate_up(self, tensor: RawTensor) -> RawTensor:
        """From all rows of gate or of up."""
        return tensor if self.hidden.is_whole else rows_of(tensor, self.hidden.first, self.hidden.end)

    def down(self, tensor: RawTensor) -> RawTensor:
        return tensor if self.width.is_whole else rows_of(tensor, self.width.first, self.width.end)


def load_mixture(
    weights: Weights, layer: int, count: int, width: int, hidden: int, top_k: int, normalise: bool
) -> MixtureOfExperts:
    """A layer's experts, from tensors that hold them all (`down_experts`, and `gate_experts` and `up_experts` or both as
    `gate_up_experts`), or from tensors of their own (`expert_gate`, `expert_up`, `expert_down`)."""
    parts = ExpertParts.of(weights.shard, width, hidden)
    return MixtureOfExperts(
        router=weights.linear({"router": Part((count,))}, width, layer),
        experts=_experts(weights, layer, count, width, hidden, parts),
        top_k=top_k,
        normalise=normalise,
        hidden=() if parts.hidden.is_whole else parts.hidden.widths,
        gathered=() if parts.width.is_whole else parts.width.widths,
    )


def _gates_and_ups(weights: Weights, layer: int, count: int, width: int, hidden: int) -> list[tuple[RawTensor, RawTensor]]:
    """Of each expert, from one tensor of both sides or from one a side."""
    if weights.has("gate_up_experts", layer):
        both = weights.raw("gate_up_experts", (count, 2 * hidden, width), layer)
        members = [member_of(both, index) for index in range(count)]
        return [(rows_of(member, 0, hidden), rows_of(member, hidden, 2 * hidden)) for member in members]
    gate, up = (weights.raw(role, (count, hidden, width), layer) for role in ("gate_experts", "up_experts"))
    return [(member_of(gate, index), member_of(up, index)) for index in range(count)]


def _experts(weights: Weights, layer: int, count: int, width: int, hidden: int, parts: ExpertParts) -> tuple[Expert, ...]:
    ops = weights.ops
    if weights.has("down_experts", layer):
        down = weights.raw("down_experts", (count, width, hidden), layer)
        return tuple(
            Expert(ops.matrix([parts.gate_up(side) for side in sides]), ops.matrix([parts.down(member_of(down, index))]))
            for index, sides in enumerate(_gates_and_ups(weights, layer, count, width, hidden))
        )
    return tuple(
        Expert(
            ops.matrix([weights.rows(role, parts.hidden, width, layer, index) for role in ("expert_gate", "expert_up")]),
            ops.matrix([weights.rows("expert_down", parts.width, hidden, layer, index)]),
        )
        for index in range(count)
    )
