"""Launches moe_routing.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import MOE_ROUTING, activation_variant

EXPERTS_MOST = 1024
TOP_K_MOST = 32
TILE = 8  # pairs of one expert that moe_linear takes together


@dataclass(frozen=True)
class Routing:
    """A step's pairs of rows and experts, row by row and by rank: P = N x top_k. int32 but for the weights, on the device.

    ids, weights: (N, top_k), ids -1 for a row of padding. order: (P), pairs gathered by expert. tiles: (T, 3), each an expert, the first
    of its pairs in `order` and how many, at most TILE; expert -1 where there is none. T follows from N alone.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    tiles: torch.Tensor
    experts: int

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])

    @classmethod
    def empty(cls, rows: int, experts: int, top_k: int, torch_device: torch.device | str) -> Routing:
        pairs = rows * top_k
        shapes = ((rows, top_k), (pairs,), (most_tiles(pairs, experts), 3))
        ids, order, tiles = (torch.empty(shape, dtype=torch.int32, device=torch_device) for shape in shapes)
        return cls(ids, torch.empty((rows, top_k), device=torch_device), order, tiles, experts)

    def check(self) -> None:
        rows, top_k = self.ids.shape
        checks.require(1 <= top_k <= min(TOP_K_MOST, self.experts), f"top_k is {top_k}, not 1 .. {min(TOP_K_MOST, self.experts)}")
        checks.require(self.experts <= EXPERTS_MOST, f"{self.experts} experts; the kernel takes at most {EXPERTS_MOST}")
        checks.tensor("ids", self.ids, torch.int32, rows, top_k)
        checks.tensor("weights", self.weights, torch.float32, rows, top_k)
        checks.tensor("order", self.order, torch.int32, rows * top_k)
        checks.tensor("tiles", self.tiles, torch.int32, most_tiles(rows * top_k, self.experts), 3)


def most_tiles(pairs: int, experts: int) -> int:
    """How many tiles hold any pairs: a tile has one at least, and of each expert one alone may be part full."""
    return min(pairs, pairs // TILE + experts)


def route(device: Device, scores: torch.Tensor, sequence_of_row: torch.Tensor, normalise: bool, routing: Routing) -> Routing:
    """Fills `routing` from (N, X) scores: the experts of the highest, the lowest id first among equals, at softmax(scores), over all
    experts or, to `normalise`, over the chosen ones. Rows of sequence -1 are padding."""
    rows, act, pairs = len(scores), checks.act_of("scores", scores), routing.order.numel()
    routing.check()
    checks.tensor("scores", scores, scores.dtype, len(routing.ids), routing.experts)
    checks.tensor("sequence_of_row", sequence_of_row, torch.int32, rows)
    experts = checks.int32("experts", routing.experts)
    if rows:
        sizes = (
            checks.int32("rows", rows),
            experts,
            checks.int32("top_k", routing.top_k),
            checks.int32("normalise", int(normalise)),
        )
        arguments: tuple[Argument, ...] = (scores, sequence_of_row, routing.ids, routing.weights, *sizes)
        grid = (checks.ceil_div(rows, MOE_ROUTING.threads // 32),)
        device.launch(MOE_ROUTING, activation_variant(act), "moe_route", grid, arguments)
        arguments = (routing.ids, routing.order, routing.tiles, checks.int32("pairs", pairs), experts)
        arguments = (*arguments, checks.int32("tiles", len(routing.tiles)))
        device.launch(MOE_ROUTING, activation_variant(act), "moe_group", (1,), arguments)
    return routing


def combine(device: Device, parts: torch.Tensor, routing: Routing, out: torch.Tensor) -> torch.Tensor:
    """out (N, E): the sum of weight x part by rank, of parts (P, E). Rows of padding are not written."""
    (rows, width), act = out.shape, checks.act_of("parts", parts)
    routing.check()
    checks.tensor("parts", parts, parts.dtype, routing.order.numel(), width)
    checks.tensor("out", out, parts.dtype, len(routing.ids), width)
    if rows:
        grid = (checks.ceil_div(width, MOE_ROUTING.threads), checks.grid_rows("rows", rows))
        sizes = (checks.int32("top_k", routing.top_k), checks.int32("width", width, 1))
        arguments: tuple[Argument, ...] = (parts, routing.ids, routing.weights, out, *sizes)
        device.launch(MOE_ROUTING, activation_variant(act), "moe_combine", grid, arguments)
    return out
