"""Linears and embeddings on weights as in the file: what they compute, and that a row's bits know nothing of the other rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from kernels_cupy.checks import ACT_NAMES, KernelArgumentError
from kernels_cupy.embed.launcher import embed
from kernels_cupy.linear.launcher import BLOCKS, Weight, linear
from kernels_cupy.linear.reference import decode

PLAIN = ("F32", "F16", "BF16")


def random_weight(random: np.random.Generator, weight_format: str, outputs: int, inputs: int) -> Weight:
    """Random bytes with tame scales."""
    block, size = BLOCKS[weight_format]
    values = torch.from_numpy(random.standard_normal((outputs, inputs)).astype(np.float32))
    if weight_format in PLAIN:
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[weight_format]
        return Weight(values.to(kind).view(torch.uint8), weight_format, inputs)
    blocks = random.integers(0, 256, (outputs * inputs // block, size), dtype=np.uint8)
    scales = (random.standard_normal((len(blocks), 2)) * 0.02).astype(np.float16).view(np.uint8)
    at = {"Q4_0": [0, 1], "Q4_1": [0, 1, 2, 3], "Q8_0": [0, 1], "Q4_K": [0, 1, 2, 3], "Q6_K": [208, 209]}[weight_format]
    blocks[:, at] = scales[:, : len(at)]
    return Weight(torch.from_numpy(blocks.reshape(outputs, -1)), weight_format, inputs)


def run(device: Any, place: Any, x: torch.Tensor, weight: Weight, out: torch.dtype | None = None) -> torch.Tensor:
    result = place(torch.full((len(x), weight.outputs), float("nan"), dtype=out or x.dtype))
    return linear(device, place(x), Weight(place(weight.data), weight.format, weight.inputs), result).cpu()


@pytest.mark.parametrize("weight_format", [name for name in BLOCKS if name not in PLAIN])
def test_the_reference_decodes_as_the_gguf_package(random: np.random.Generator, weight_format: str) -> None:
    """Bit for bit, all scale and minimum bits in use."""
    weight = random_weight(random, weight_format, 5, 512)
    expected = dequantize(weight.data.numpy(), GGMLQuantizationType[weight_format])
    assert decode(weight_format, weight.data.numpy(), 512).tobytes() == expected.tobytes()


@pytest.mark.parametrize("weight_format", BLOCKS)
def test_embedding_is_the_reference(device: Any, place: Any, random: np.random.Generator, weight_format: str) -> None:
    """Decoded rows bit for bit; the row of a padding id is left alone."""
    weight = random_weight(random, weight_format, 9, 512 if weight_format.endswith("K") else 288)
    ids = torch.tensor([8, 0, -1, 8, 3], dtype=torch.int32)
    out = place(torch.full((5, weight.inputs), 7.0))
    embed(device, Weight(place(weight.data), weight_format, weight.inputs), place(ids), out)
    expected = decode(weight_format, weight.data.numpy(), weight.inputs)[ids.numpy()]
    expected[2] = 7.0
    assert out.cpu().numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("weight_format", BLOCKS)
@pytest.mark.parametrize("act", ["f32", "bf16"])
def test_linear_is_close_to_float64(device: Any, place: Any, random: np.random.Generator, weight_format: str, act: str) -> None:
    """Within the rounding of a sum over K in float32, and of the output's type; odd numbers of rows and outputs."""
    dtype = next(kind for kind, name in ACT_NAMES.items() if name == act)
    weight = random_weight(random, weight_format, 21, 768 if weight_format.endswith("K") else 608)
    x = torch.from_numpy(random.standard_normal((11, weight.inputs)).astype(np.float32)).to(dtype)
    exact = x.double() @ torch.from_numpy(decode(weight_format, weight.data.numpy(), weight.inputs)).double().T
    magnitude = x.double().abs() @ torch.from_numpy(decode(weight_format, weight.data.numpy(), weight.inputs)).double().abs().T
    bound = magnitude * (weight.inputs / 32 + 8) * 2.0**-24
    assert ((run(device, place, x, weight, torch.float32).double() - exact).abs() <= bound).all()
    rounding = {"f32": 0.0, "bf16": 2.0**-8}[act]
    assert ((run(device, place, x, weight).double() - exact).abs() <= bound + exact.abs() * rounding).all()


@pytest.mark.parametrize("weight_format", ["F32", "Q4_0", "Q6_K"])
def test_a_row_has_the_same_bits_in_any_company(device: Any, place: Any, random: np.random.Generator, weight_format: str) -> None:
    """Alone or among 2 .. 19 rows, at every place of a tile, beside a NaN."""
    weight = random_weight(random, weight_format, 19, 512)
    x = torch.from_numpy(random.standard_normal((19, 512)).astype(np.float32))
    whole = run(device, place, x, weight)
    for start, count in ((0, 1), (3, 1), (18, 1), (1, 2), (2, 7), (5, 8), (4, 9)):
        assert (
            run(device, place, x[start : start + count], weight).numpy().tobytes()
            == whole[start : start + count].numpy().tobytes()
        )
    x[1] = float("nan")
    broken = run(device, place, x, weight)
    assert broken[1].isnan().all()
    rest = [row for row in range(19) if row != 1]
    assert broken[rest].numpy().tobytes() == whole[rest].numpy().tobytes()


def test_outputs_side_by_side(device: Any, place: Any, random: np.random.Generator) -> None:
    """Parts of one linear write their own columns of a wider result."""
    parts = [random_weight(random, name, outputs, 256) for name, outputs in (("Q4_1", 7), ("Q8_0", 20))]
    x = torch.from_numpy(random.standard_normal((3, 256)).astype(np.float32))
    out = torch.zeros(3, 27)
    at = 0
    out = place(out)
    for part in parts:
        linear(device, place(x), Weight(place(part.data), part.format, 256), out[:, at : at + part.outputs])
        at += part.outputs
    expected = torch.cat([run(device, place, x, part) for part in parts], dim=1)
    assert out.cpu().numpy().tobytes() == expected.numpy().tobytes()


def test_wrong_weights_are_refused(device: Any) -> None:
    """A shape that would read past the weight, an unknown format, a tensor that is not contiguous."""
    x, out = torch.zeros(2, 64), torch.zeros(2, 5)
    wrong = [
        (x, Weight(torch.zeros(5, 35, dtype=torch.uint8), "Q4_0", 64), "shape"),
        (x, Weight(torch.zeros(5, 36, dtype=torch.uint8), "Q5_0", 64), "no kernel"),
        (x, Weight(torch.zeros(5, 18, dtype=torch.uint8), "Q4_0", 33), "blocks of 32"),
        (torch.zeros(64, 2).T, Weight(torch.zeros(5, 36, dtype=torch.uint8), "Q4_0", 64), "contiguous"),
        (torch.zeros(2, 32), Weight(torch.zeros(5, 36, dtype=torch.uint8), "Q4_0", 64), "shape"),
    ]
    for rows, weight, words in wrong:
        with pytest.raises(KernelArgumentError, match=words):
            linear(device, rows, weight, out)
