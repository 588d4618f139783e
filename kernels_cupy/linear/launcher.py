"""Launches linear.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import LINEAR, weight_variant

OUTPUTS_PER_WARP = {1: 4, 4: 2, 8: 2}  # COLUMNS of the entries, by their ROWS

# format -> (weights in a block, bytes of a block)
BLOCKS = {
    "F32": (32, 128),
    "F16": (32, 64),
    "BF16": (32, 64),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}


@dataclass(frozen=True)
class Weight:
    """A matrix of `outputs` rows of `inputs` weights: `data` is uint8 (outputs, bytes of a row), `format` one of BLOCKS."""

    data: torch.Tensor
    format: str
    inputs: int

    @property
    def outputs(self) -> int:
        return len(self.data)

    def check(self) -> None:
        checks.require(self.format in BLOCKS, f"weights of format {self.format} have no kernel; there are {', '.join(BLOCKS)}")
        block, size = BLOCKS[self.format]
        checks.require(self.inputs > 0 and self.inputs % block == 0, f"{self.inputs} inputs are not blocks of {block}")
        checks.tensor("weight", self.data, torch.uint8, None, self.inputs // block * size)
        unit = {"F32": 16, "F16": 16, "BF16": 16, "Q4_1": 4, "Q4_K": 4}.get(self.format, 2)
        checks.require(
            self.data.data_ptr() % unit == 0, f"a weight of {self.format} starts at an address not a multiple of {unit}"
        )


def linear(device: Device, x: torch.Tensor, weight: Weight, out: torch.Tensor) -> torch.Tensor:
    """out (N, O) = x @ weight.T; x is (N, K) contiguous. `out` has contiguous rows, of x's type or float32."""
    rows, act = len(x), checks.act_of("x", x)
    weight.check()
    checks.tensor("x", x, x.dtype, rows, weight.inputs)
    checks.aligned("x", x)
    wide = out.dtype == torch.float32
    stride = checks.rows_of("out", out, torch.float32 if wide else x.dtype, rows, weight.outputs)
    numbers = (("rows", rows), ("inputs", weight.inputs), ("outputs", weight.outputs))
    sizes = [checks.int32(name, number) for name, number in numbers]
    height = next((height for height in OUTPUTS_PER_WARP if rows <= height), max(OUTPUTS_PER_WARP))
    columns = checks.ceil_div(weight.outputs, LINEAR.threads // 32 * OUTPUTS_PER_WARP[height])
    if rows:
        grid = (columns, checks.grid_rows("rows", checks.ceil_div(rows, height)))
        row_bytes, entry = checks.int64(weight.data.shape[1]), f"linear_rows{height}" + ("_f32" if wide else "")
        arguments: tuple[Argument, ...] = (x, weight.data, row_bytes, out, checks.int64(stride), *sizes)
        device.launch(LINEAR, weight_variant(act, weight.format), entry, grid, arguments)
    return out
