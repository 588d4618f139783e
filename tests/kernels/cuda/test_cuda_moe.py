"""Mixtures of experts: which experts a row takes, their linears by tiles of pairs, and sums that no other row has a part in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels_cupy.checks import ACT_NAMES, KernelArgumentError
from kernels_cupy.linear.launcher import BLOCKS, Weight, linear
from kernels_cupy.moe_linear.launcher import ExpertWeights, moe_linear
from kernels_cupy.moe_linear.reference import moe_linear as exact_linear
from kernels_cupy.moe_routing import reference
from kernels_cupy.moe_routing.launcher import TILE, Routing, combine, most_tiles, route

DTYPES = {name: dtype for dtype, name in ACT_NAMES.items()}
SHAPES = [(1, 4, 2), (9, 8, 3), (5, 5, 5), (40, 70, 8), (3, 33, 1), (2, 128, 32)]  # rows, experts, top_k


def normal(random: np.random.Generator, *shape: int, act: str = "f32") -> torch.Tensor:
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(DTYPES[act])


def of_rows(rows: int, padding: tuple[int, ...] = ()) -> torch.Tensor:
    return torch.tensor([-1 if row in padding else 0 for row in range(rows)], dtype=torch.int32)


def routed(
    device: Any, place: Any, scores: torch.Tensor, top_k: int, normalise: bool = True, padding: tuple[int, ...] = ()
) -> Routing:
    """Its memory held 77s before, which no test may see."""
    rows, experts = scores.shape
    empty = Routing.empty(rows, experts, top_k, "cpu")
    parts = (place(torch.full_like(part, 77)) for part in (empty.ids, empty.weights, empty.order, empty.tiles))
    return route(device, place(scores), place(of_rows(rows, padding)), normalise, Routing(*parts, experts))


def weights_of(place: Any, experts: list[list[Weight]]) -> ExpertWeights:
    placed = [[Weight(place(part.data), part.format, part.inputs) for part in parts] for parts in experts]
    return ExpertWeights.of(placed, placed[0][0].data.device)


def random_weight(random: np.random.Generator, weight_format: str, outputs: int, inputs: int) -> Weight:
    """Random bytes, with scales that are small numbers."""
    block, size = BLOCKS[weight_format]
    if weight_format == "F32":
        return Weight(normal(random, outputs, inputs).view(torch.uint8), "F32", inputs)
    data = random.integers(0, 256, (outputs * inputs // block, size), dtype=np.uint8)
    data[:, 1 if weight_format != "Q6_K" else 209] = 0x24
    if weight_format in ("Q4_1", "Q4_K"):
        data[:, 3] = 0x24
    return Weight(torch.from_numpy(data.reshape(outputs, -1)), weight_format, inputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalise", [True, False])
def test_routing(device: Any, place: Any, random: np.random.Generator, shape: tuple[int, int, int], normalise: bool) -> None:
    """The ids and weights of the definition, ties included; rows of padding take no expert."""
    rows, experts, top_k = shape
    scores = normal(random, rows, experts) * 3
    scores[::2] = torch.round(scores[::2])  # ties
    padding = (rows - 1,) if rows > 4 else ()
    got = routed(device, place, scores, top_k, normalise, padding)
    ids, weights = reference.route(scores.numpy(), top_k, normalise)
    sound = [row for row in range(rows) if row not in padding]
    assert got.ids.cpu()[sound].tolist() == ids[sound].tolist()
    assert np.allclose(got.weights.cpu().numpy()[sound], weights[sound], rtol=1e-6, atol=1e-12)
    assert all(got.ids[row].tolist() == [-1] * top_k for row in padding)


def test_scores_that_are_not_numbers(device: Any, place: Any, random: np.random.Generator) -> None:
    """A NaN or an infinity makes all of its row's weights NaN, and the ids are still experts'; -infinity is never taken before a number."""
    scores = normal(random, 5, 6)
    scores[0, 4], scores[1, 2], scores[2, :4], scores[3] = float("nan"), float("inf"), -float("inf"), -float("inf")
    got = routed(device, place, scores, 2)
    ids, weights = got.ids.cpu(), got.weights.cpu()
    assert ids[0, 0] == 4 and ids[1, 0] == 2 and set(ids[2].tolist()) == {4, 5} and ids[3].tolist() == [0, 1]
    assert weights[[0, 1, 3]].isnan().all() and weights[[2, 4]].isfinite().all()
    assert ((ids >= 0) & (ids < 6)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pair_is_in_one_tile(device: Any, place: Any, random: np.random.Generator, shape: tuple[int, int, int]) -> None:
    """Of its own expert; tiles hold 1 .. 8 pairs, and as few tiles are used as that takes."""
    rows, experts, top_k = shape
    scores = normal(random, rows, experts)
    scores[:, 0] += 2.0  # one that many take
    padding = (0,) if rows > 2 else ()
    got = routed(device, place, scores, top_k, padding=padding)
    order, ids = got.order.cpu().tolist(), got.ids.cpu().reshape(-1).tolist()
    seen: list[int] = []
    used = [tile for tile in got.tiles.cpu().tolist() if tile[0] >= 0]
    for expert, first, count in used:
        assert 1 <= count <= TILE
        assert {ids[pair] for pair in order[first : first + count]} == {expert}
        seen += order[first : first + count]
    assert sorted(seen) == [pair for pair, expert in enumerate(ids) if expert >= 0]
    assert len(used) == sum(-(-ids.count(expert) // TILE) for expert in set(ids) - {-1})


def test_most_tiles_is_enough() -> None:
    """For one expert that takes all, all that take alike, and every one with a part full tile."""
    for pairs in range(1, 200):
        for experts in (1, 2, 7, 64):
            for share in (experts, min(experts, 1), max(1, experts // 2)):
                counts = [pairs // share + (index < pairs % share) for index in range(share)]
                assert sum(-(-count // TILE) for count in counts) <= most_tiles(pairs, experts)


@pytest.mark.parametrize("weight_format", [name for name in BLOCKS if name not in ("F16", "BF16")])
def test_a_pair_has_the_bits_of_the_row_alone(device: Any, place: Any, random: np.random.Generator, weight_format: str) -> None:
    """Whatever tile it lies in, its outputs are bit for bit those of `linear` with its expert's weight, part by part."""
    experts, rows, top_k, inputs = 3, 11, 2, 256
    weights = [[random_weight(random, weight_format, 21, inputs) for _ in range(2)] for _ in range(experts)]
    x = normal(random, rows, inputs)
    routing = routed(device, place, normal(random, rows, experts), top_k, padding=(4,))
    out = place(torch.full((rows * top_k, 42), 5.0))
    moe_linear(device, place(x), weights_of(place, weights), routing, top_k, out)
    for pair, expert in enumerate(routing.ids.cpu().reshape(-1).tolist()):
        if expert < 0:
            assert (out[pair] == 5.0).all()
            continue
        own = place(x[pair // top_k : pair // top_k + 1].contiguous())
        for part, weight in enumerate(weights[expert]):
            there = Weight(place(weight.data), weight.format, inputs)
            alone = linear(device, own, there, place(torch.empty(1, 21)))
            assert out.cpu()[pair, 21 * part : 21 * part + 21].numpy().tobytes() == alone.cpu()[0].numpy().tobytes()


def test_experts_of_several_formats(device: Any, place: Any, random: np.random.Generator) -> None:
    """One launch a format; each pair's outputs are close to float64."""
    kinds = ("F32", "Q4_0", "Q8_0", "Q4_1")
    weights = [random_weight(random, kind, 10, 64) for kind in kinds]
    x = normal(random, 6, 64)
    routing = routed(device, place, normal(random, 6, 4), 4)
    out = moe_linear(device, place(x), weights_of(place, [[w] for w in weights]), routing, 4, place(torch.empty(24, 10)))
    exact = exact_linear(x.numpy(), [(w.format, w.data.numpy()) for w in weights], routing.ids.cpu().numpy())
    assert np.allclose(out.cpu().numpy(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("act", DTYPES)
def test_combine(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Bit for bit the sum by rising rank, a product and a sum at a time; a row of padding is left alone."""
    routing = routed(device, place, normal(random, 5, 7), 3, padding=(2,))
    parts = normal(random, 15, 300, act=act)
    out = place(torch.full((5, 300), 9.0, dtype=DTYPES[act]))
    combine(device, place(parts), routing, out)
    weights, wide = routing.weights.cpu(), parts.float().view(5, 3, 300)
    total = weights[:, 0, None] * wide[:, 0]
    for rank in (1, 2):
        total = total + weights[:, rank, None] * wide[:, rank]
    expected = total.to(DTYPES[act])
    expected[2] = 9.0
    assert torch.equal(out.cpu(), expected)


def test_wrong_shapes_are_refused(device: Any, random: np.random.Generator) -> None:
    """More experts than there are, experts of other shapes, rows that do not fit the pairs."""
    scores, rows = normal(random, 2, 4), of_rows(2)
    with pytest.raises(KernelArgumentError, match="top_k is 5"):
        route(device, scores, rows, True, Routing.empty(2, 4, 5, "cpu"))
    with pytest.raises(KernelArgumentError, match="scores has shape"):
        route(device, scores, rows, True, Routing.empty(2, 5, 2, "cpu"))
    with pytest.raises(KernelArgumentError, match="at most 1024"):
        route(device, normal(random, 2, 1025), rows, True, Routing.empty(2, 1025, 2, "cpu"))
    plain = [Weight(torch.zeros(outputs, 128, dtype=torch.uint8), "F32", 32) for outputs in (4, 4, 5)]
    with pytest.raises(KernelArgumentError, match="experts of 5 x 32 and of 4 x 32"):
        ExpertWeights.of([[plain[0]], [plain[2]]], "cpu")
    with pytest.raises(KernelArgumentError, match="different numbers of parts"):
        ExpertWeights.of([plain[:2], plain[:1]], "cpu")
    weights, routing = ExpertWeights.of([plain[:1]] * 4, "cpu"), Routing.empty(2, 4, 2, "cpu")
    with pytest.raises(KernelArgumentError, match="2 rows, 1 pairs each, for 4 pairs"):
        moe_linear(device, torch.zeros(2, 32), weights, routing, 1, torch.zeros(4, 4))
    with pytest.raises(KernelArgumentError, match="4 experts for a routing to 3"):
        moe_linear(device, torch.zeros(2, 32), weights, Routing.empty(2, 3, 2, "cpu"), 2, torch.zeros(4, 4))
