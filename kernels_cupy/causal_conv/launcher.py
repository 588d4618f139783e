"""Launches causal_conv.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import CAUSAL_CONV, CONV_TAPS, conv_variant


@dataclass(frozen=True)
class Sequences:
    """Which rows are whose: row_start int32 (B + 1); positions int32 (N), a sequence with its first row at 0 begins from zeros; slots
    int32 (B), its place in a state, different ones, -1 for padding. All on the device, and the caller's to check."""

    row_start: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor

    def check(self, rows: int) -> None:
        count = len(self.slots)
        checks.tensor("slots", self.slots, torch.int32, count)
        checks.tensor("row_start", self.row_start, torch.int32, count + 1)
        checks.tensor("positions", self.positions, torch.int32, rows)


def causal_conv(
    device: Device, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, sequences: Sequences, out: torch.Tensor
) -> torch.Tensor:
    """out (N, C) = silu of a convolution of each sequence's rows, continued from its state, which is brought up to date.

    x: (N, C); weight: float32 (taps, C) and state: float32 (slots, taps - 1, C), the oldest input first.
    """
    (rows, channels), act = x.shape, checks.act_of("x", x)
    taps, count = len(weight), len(sequences.slots)
    checks.require(taps in CONV_TAPS, f"a convolution of {taps} taps has no kernel; there are {CONV_TAPS}")
    checks.tensor("x", x, x.dtype, rows, channels)
    checks.tensor("out", out, x.dtype, rows, channels)
    checks.tensor("weight", weight, torch.float32, taps, channels)
    checks.tensor("state", state, torch.float32, None, taps - 1, channels)
    sequences.check(rows)
    if rows and count:
        grid = (checks.ceil_div(channels, CAUSAL_CONV.threads), checks.grid_rows("sequences", count))
        where = (sequences.row_start, sequences.positions, sequences.slots)
        arguments: tuple[Argument, ...] = (x, weight, state, *where, out, checks.int32("channels", channels, 1))
        device.launch(CAUSAL_CONV, conv_variant(act, taps), "causal_conv", grid, arguments)
    return out
