"""The ops of recurrent layers: gates, causal convolution and Gated DeltaNet; a sequence cut into chunks keeps its bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from kernels_cupy.causal_conv import reference as conv_reference
from kernels_cupy.causal_conv.launcher import Sequences, causal_conv
from kernels_cupy.checks import ACT_NAMES, KernelArgumentError
from kernels_cupy.gdn_gating import reference as gating_reference
from kernels_cupy.gdn_gating.launcher import gdn_gating
from kernels_cupy.gdn_recurrence import reference as gdn_reference
from kernels_cupy.gdn_recurrence.launcher import gdn_recurrence
from kernels_cupy.registry import GDN_HEADS

DTYPES = {name: dtype for dtype, name in ACT_NAMES.items()}
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def normal(random: np.random.Generator, *shape: int, act: str = "f32") -> torch.Tensor:
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(DTYPES[act])


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def sequences_of(place: Any, counts: list[int], slots: list[int], begins: list[int]) -> tuple[Sequences, list[slice]]:
    """Sequences of so many rows, those in `begins` at position 0, and each one's rows."""
    starts = [0, *np.cumsum(counts).tolist()]
    positions = [row + (0 if b in begins else 5) for b, count in enumerate(counts) for row in range(count)]
    where = Sequences(place(int32(*starts)), place(int32(*positions)), place(int32(*slots)))
    return where, [slice(start, end) for start, end in itertools.pairwise(starts)]


@pytest.mark.parametrize("act", DTYPES)
def test_gating(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Within a few roundings over the whole range, tiny and large softplus included."""
    ba = normal(random, 5, 60, act=act) * 8
    ba[0, 30:36] = torch.tensor([-80.0, -20.0, 0.0, 19.0, 21.0, float("nan")])
    decay, dt_bias = -torch.exp(normal(random, 30)), normal(random, 30)
    got = gdn_gating(device, place(ba), place(decay), place(dt_bias), place(torch.empty(5, 60))).cpu().double()
    expected = gating_reference.gdn_gating(ba, decay, dt_bias)
    assert got.isnan().nonzero().tolist() == [[0, 35]]
    # softplus carries over the rounding of its float32 argument, relatively where it is small
    x = ba[:, 30:].float() + dt_bias
    bound = expected.abs() * 2.0**-19
    bound[:, 30:] *= 1 + x.abs()
    assert ((got - expected).abs() <= bound + 1e-38)[~got.isnan()].all()


@pytest.mark.parametrize("act", DTYPES)
def test_conv(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Ragged sequences with their own states, one that begins and a padding one among them; other slots stay as they were."""
    slots, channels, taps = [3, 0, -1, 1, 4], 200, 4
    where, rows = sequences_of(place, [5, 1, 0, 2, 0], slots, begins=[3])
    x, weight, state = normal(random, 8, channels, act=act), normal(random, taps, channels), normal(random, 5, taps - 1, channels)
    held, out = place(state), place(torch.empty_like(x))
    causal_conv(device, place(x), place(weight), held, where, out)
    expected_state = state.clone()
    for sequence in (0, 1, 3):
        slot, own = slots[sequence], rows[sequence]
        past = torch.zeros_like(state[slot]) if sequence == 3 else state[slot]
        expected, new = conv_reference.causal_conv(x[own], weight, past)
        assert ((out.cpu()[own].double() - expected).abs() <= 4e-6 + expected.abs() * ROUNDING[act]).all()
        expected_state[slot] = new.float()
    assert torch.equal(held.cpu(), expected_state)


def random_rows(
    random: np.random.Generator, count: int, dims: tuple[int, int], act: str = "f32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(qkv, gates) of 2 key heads and 4 value heads."""
    qkv = normal(random, count, 4 * dims[0] + 4 * dims[1], act=act)
    return qkv, torch.cat([torch.sigmoid(normal(random, count, 4)), -torch.exp(normal(random, count, 4))], dim=1)


@pytest.mark.parametrize("act", DTYPES)
@pytest.mark.parametrize("dims", GDN_HEADS)
@pytest.mark.parametrize("tiled", [False, True])
def test_recurrence(device: Any, place: Any, random: np.random.Generator, act: str, dims: tuple[int, int], tiled: bool) -> None:
    """Against float64, ragged, with a padding sequence and one that begins; correlated keys, which break chunked inverses, included."""
    key_dim, value_dim = dims
    qkv, gates = random_rows(random, 6, dims, act)
    qkv[3:, 2 * key_dim : 4 * key_dim] = qkv[3, 2 * key_dim : 4 * key_dim]
    slots = [2, -1, 0, 1]
    where, rows = sequences_of(place, [2, 0, 4, 0], slots, begins=[0])
    state = normal(random, 3, 4, *dims)
    held, out = place(state), place(torch.empty(6, 4 * value_dim, dtype=qkv.dtype))
    gdn_recurrence(device, place(qkv), place(gates), held, where, 2, tiled, out)
    got, moved = out.cpu().view(6, 4, value_dim).double(), held.cpu()
    for sequence in (0, 2):
        own, slot = rows[sequence], slots[sequence]
        q, k = (part.view(-1, 2, key_dim) for part in qkv[own, : 4 * key_dim].chunk(2, dim=1))
        v = qkv[own, 4 * key_dim :].view(-1, 4, value_dim)
        for head in range(4):
            key_head = head % 2 if tiled else head // 2
            past = torch.zeros(dims) if sequence == 0 else state[slot, head]
            beta, g = gates[own, head], gates[own, 4 + head]
            parts = (q[:, key_head], k[:, key_head], v[:, head], g, beta, past)
            expected, new = gdn_reference.gdn_recurrence(*parts, key_dim**-0.5)
            assert ((moved[slot, head].double() - new).abs() <= 1e-5 * (1 + new.abs())).all()
            assert ((got[own, head] - expected).abs() <= 1e-5 + 2 * ROUNDING[act] * expected.abs()).all()
    assert torch.equal(moved[1], state[1])


def test_chunks_do_not_change_bits(device: Any, place: Any, random: np.random.Generator) -> None:
    """The recurrence and the convolution in one piece and in several: the same outputs and states, bit for bit."""
    qkv, gates = random_rows(random, 7, (128, 128))
    x, weight = normal(random, 7, 50), place(normal(random, 4, 50))
    state, held = normal(random, 1, 4, 128, 128), normal(random, 1, 3, 50)

    def run(cuts: list[int]) -> list[torch.Tensor]:
        own_state, own_held, results, start = place(state), place(held), [], 0
        for end in cuts:
            positions = place(torch.arange(9 + start, 9 + end, dtype=torch.int32))
            where = Sequences(place(int32(0, end - start)), positions, place(int32(0)))
            parts = (place(qkv[start:end].contiguous()), place(gates[start:end].contiguous()))
            recurrent = gdn_recurrence(device, *parts, own_state, where, 2, False, place(torch.empty(end - start, 512)))
            conv = causal_conv(
                device, place(x[start:end].contiguous()), weight, own_held, where, place(torch.empty(end - start, 50))
            )
            results.append(torch.cat([recurrent.cpu(), conv.cpu()], dim=1))
            start = end
        return [torch.cat(results), own_state.cpu(), own_held.cpu()]

    for whole, cut in zip(run([7]), run([1, 2, 6, 7]), strict=True):
        assert torch.equal(whole, cut)


def test_wrong_shapes_are_refused(device: Any, random: np.random.Generator) -> None:
    """Sizes without a kernel, states of another shape."""
    where = Sequences(int32(0, 2), int32(0, 1), int32(0))
    with pytest.raises(KernelArgumentError, match=r"\(32, 32\) have no kernel"):
        gdn_recurrence(device, *random_rows(random, 2, (32, 32)), torch.zeros(1, 4, 32, 32), where, 2, False, torch.zeros(2, 128))
    with pytest.raises(KernelArgumentError, match="state has shape"):
        causal_conv(device, torch.zeros(2, 5), torch.zeros(4, 5), torch.zeros(1, 4, 5), where, torch.zeros(2, 5))
    with pytest.raises(KernelArgumentError, match="5 taps"):
        causal_conv(device, torch.zeros(2, 5), torch.zeros(5, 5), torch.zeros(1, 4, 5), where, torch.zeros(2, 5))
