"""Launches moe_linear.cu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.linear.launcher import BLOCKS, Weight
from kernels_cupy.moe_routing.launcher import Routing
from kernels_cupy.registry import MOE_LINEAR, weight_variant

OUTPUTS_PER_WARP = 2  # COLUMNS


@dataclass(frozen=True)
class ExpertWeights:
    """The same linear of all experts, of one or more parts whose outputs lie side by side, each of `outputs`. `addresses` has for each
    format an int64 (parts, experts), 0 where that weight is of another one. `held` keeps the weights themselves."""

    addresses: dict[str, torch.Tensor]
    parts: int
    experts: int
    inputs: int
    outputs: int
    held: tuple[tuple[Weight, ...], ...]

    @classmethod
    def of(cls, experts: Sequence[Sequence[Weight]], torch_device: torch.device | str) -> ExpertWeights:
        """`experts[x][part]`. Raises KernelArgumentError where they are not of one shape."""
        held = tuple(tuple(parts) for parts in experts)
        checks.require(bool(held) and bool(held[0]), "a mixture without experts")
        first = held[0][0]
        for parts in held:
            checks.require(len(parts) == len(held[0]), "experts of different numbers of parts")
            for weight in parts:
                weight.check()
                same = (weight.inputs, weight.outputs) == (first.inputs, first.outputs)
                checks.require(same, f"experts of {weight.outputs} x {weight.inputs} and of {first.outputs} x {first.inputs}")
        addresses = {}
        for name in sorted({weight.format for parts in held for weight in parts}):
            table = [[x[part].data.data_ptr() * (x[part].format == name) for x in held] for part in range(len(held[0]))]
            addresses[name] = torch.tensor(table, dtype=torch.int64).to(torch_device)
        return cls(addresses, len(held[0]), len(held), first.inputs, first.outputs, held)


def moe_linear(
    device: Device, x: torch.Tensor, weights: ExpertWeights, routing: Routing, sharing: int, out: torch.Tensor
) -> torch.Tensor:
    """out (P, parts x O): of each pair, its row of x times its expert's weight. `sharing` neighbouring pairs have one row of x, which is
    (P / sharing, K). Pairs of padding are not written."""
    pairs, act = routing.order.numel(), checks.act_of("x", x)
    routing.check()
    checks.require(weights.experts == routing.experts, f"{weights.experts} experts for a routing to {routing.experts}")
    checks.require(sharing >= 1 and len(x) * sharing == pairs, f"{len(x)} rows, {sharing} pairs each, for {pairs} pairs")
    checks.tensor("x", x, x.dtype, None, weights.inputs)
    checks.aligned("x", x)
    checks.tensor("out", out, x.dtype, pairs, weights.parts * weights.outputs)
    columns = checks.ceil_div(weights.outputs, MOE_LINEAR.threads // 32 * OUTPUTS_PER_WARP)
    numbers = (("experts", weights.experts), ("sharing", sharing), ("inputs", weights.inputs), ("outputs", weights.outputs))
    sizes = [checks.int32(name, number, 1) for name, number in numbers]
    if not pairs:
        return out
    for name, addresses in weights.addresses.items():
        block, size = BLOCKS[name]
        row_bytes = checks.int64(weights.inputs // block * size)
        arguments: tuple[Argument, ...] = (x, addresses, row_bytes, routing.tiles, routing.order, out, *sizes)
        grid = (columns, checks.grid_rows("tiles", len(routing.tiles)), weights.parts)
        device.launch(MOE_LINEAR, weight_variant(act, name), "moe_linear", grid, arguments)
    return out
