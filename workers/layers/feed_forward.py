"""Feed-forwards of one layer: gated linears (Shazeer 2020), and mixtures of such experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from workers.layers.weights import Linear, Weights
from workers.ops.protocol import Expert, Ops, Value
from workers.weights.tensors import member_of


class FeedForward(Protocol):
    def __call__(self, ops: Ops, x: Value) -> Value: ...


@dataclass(frozen=True)
class SiluFeedForward:
    gate_up: Linear
    down: Linear

    @classmethod
    def load(cls, weights: Weights, layer: int, width: int, hidden: int) -> SiluFeedForward:
        return cls(*_gated(weights, layer, width, hidden))

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.down(ops, ops.silu_mul(self.gate_up(ops, x)))


@dataclass(frozen=True)
class GeluFeedForward:
    gate_up: Linear
    down: Linear

    @classmethod
    def load(cls, weights: Weights, layer: int, width: int, hidden: int) -> GeluFeedForward:
        return cls(*_gated(weights, layer, width, hidden))

    def __call__(self, ops: Ops, x: Value) -> Value:
        return self.down(ops, ops.gelu_tanh_mul(self.gate_up(ops, x)))


@dataclass(frozen=True)
class MixtureOfExperts:
    """`top_k` and `normalise` as in Ops.moe_ffn."""

    router: Linear
    experts: tuple[Expert, ...]
    top_k: int
    normalise: bool

    def __call__(self, ops: Ops, x: Value) -> Value:
        return ops.moe_ffn(x, self.router(ops, x), self.experts, self.top_k, self.normalise)


def _gated(weights: Weights, layer: int, width: int, hidden: int) -> tuple[Linear, Linear]:
    return weights.linear({"gate": hidden, "up": hidden}, width, layer), weights.linear({"down": width}, hidden, layer)


def load_experts(weights: Weights, layer: int, count: int, width: int, hidden: int) -> tuple[Expert, ...]:
    """A layer's experts, from one tensor a side that holds them all (`gate_experts`, `up_experts`, `down_experts`), or from
    tensors of their own (`expert_gate`, `expert_up`, `expert_down`)."""
    ops = weights.ops
    if weights.has("gate_experts", layer):
        gate, up = (weights.raw(role, (count, hidden, width), layer) for role in ("gate_experts", "up_experts"))
        down = weights.raw("down_experts", (count, width, hidden), layer)
        return tuple(
            Expert(ops.matrix([member_of(gate, index), member_of(up, index)]), ops.matrix([member_of(down, index)]))
            for index in range(count)
        )
    return tuple(
        Expert(
            ops.matrix([weights.raw(role, (hidden, width), layer, index) for role in ("expert_gate", "expert_up")]),
            ops.matrix([weights.raw("expert_down", (width, hidden), layer, index)]),
        )
        for index in range(count)
    )
