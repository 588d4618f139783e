"""Launches rank_exchange.cu."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels_cupy import checks
from kernels_cupy.device import Argument, Device
from kernels_cupy.registry import RANK_EXCHANGE

LINE = 16  # words of 4 bytes


def header_words(ranks: int) -> int:
    """Of a board, in front of its two regions."""
    return LINE * (1 + ranks)


@dataclass(frozen=True)
class Boards:
    """Of all ranks, seen from one: `addresses` (ranks) int64, on the device."""

    addresses: torch.Tensor
    rank: int
    region: int  # floats

    @property
    def ranks(self) -> int:
        return len(self.addresses)

    def arguments(self) -> tuple[Argument, ...]:
        checks.tensor("addresses", self.addresses, torch.int64, None)
        rank = checks.int32("rank", self.rank, 0, self.ranks - 1)
        return self.addresses, rank, checks.int32("ranks", self.ranks, 2), checks.int64(self.region)


def push(device: Device, boards: Boards, x: torch.Tensor, first: int, width: int) -> None:
    """Columns x (N, C) to column `first` of the rows (N, `width`) of this turn, on all boards."""
    stride, (rows, columns) = checks.rows_of("x", x, torch.float32, None, None), x.shape
    checks.require(rows * width <= boards.region and first + columns <= width, f"{rows} rows of {width} do not fit a region")
    if rows and columns:
        sizes = checks.int64(stride), checks.int32("columns", columns), checks.int32("first", first), checks.int32("width", width)
        device.launch(RANK_EXCHANGE, (), "push", _grid(rows, columns), (*boards.arguments(), x, *sizes))


def push_rows(device: Device, boards: Boards, x: torch.Tensor, ids: torch.Tensor) -> None:
    """Those rows of x (N, E) whose id is not -1, to the rows (N, E) of this turn, on all boards."""
    rows, width = x.shape
    checks.tensor("x", x, torch.float32, rows, width)
    checks.tensor("ids", ids, torch.int32, rows)
    checks.require(rows * width <= boards.region, f"{rows} rows of {width} do not fit a region")
    if rows:
        arguments = (*boards.arguments(), x, ids, checks.int32("width", width, 1))
        device.launch(RANK_EXCHANGE, (), "push_rows", _grid(rows, width), arguments)


def place(device: Device, x: torch.Tensor, address: int, first: int, width: int) -> None:
    """Columns x (N, C) to column `first` of the rows (N, `width`) at an address of another rank, or of this."""
    rows, columns = x.shape
    checks.tensor("x", x, torch.float32, rows, columns)
    checks.require(first + columns <= width, f"{columns} columns from {first} on are beyond {width}")
    if rows and columns:
        sizes = np.uint64(address), checks.int32("first", first), checks.int32("width", width)
        arguments = (x, checks.int32("columns", columns), *sizes)
        device.launch(RANK_EXCHANGE, (), "place", _grid(rows, columns), arguments)


def meet(device: Device, boards: Boards, rounds: int, words: torch.Tensor) -> None:
    """Waits for all ranks, for so many rounds. `words` (2) int32, which the device can read and write: whether the group was left,
    and what went wrong: 1, another rank did not come; 2, the group was left."""
    checks.tensor("words", words, torch.int32, 2)
    arguments = (*boards.arguments()[:3], checks.int64(rounds), words)
    device.launch(RANK_EXCHANGE, (), "meet", (1,), arguments)


def collect(device: Device, boards: Boards, out: torch.Tensor) -> torch.Tensor:
    """out (N, width) = the rows that were pushed before the last `meet`."""
    checks.tensor("out", out, torch.float32, None, None)
    count = out.numel()
    checks.require(count <= boards.region, f"{count} floats do not fit a region")
    if count:
        grid = (checks.ceil_div(count, RANK_EXCHANGE.threads),)
        device.launch(RANK_EXCHANGE, (), "collect", grid, (*boards.arguments(), out, checks.int64(count)))
    return out


def own_ids(device: Device, ids: torch.Tensor, first: int, rows: int, out: torch.Tensor) -> torch.Tensor:
    """out (N) = `ids` (N) as a table of `rows` rows from id `first` on counts them; -1 where it has none."""
    count = len(ids)
    checks.tensor("ids", ids, torch.int32, count)
    checks.tensor("out", out, torch.int32, count)
    if count:
        sizes = checks.int32("first", first), checks.int32("rows", rows)
        grid = (checks.ceil_div(count, RANK_EXCHANGE.threads),)
        device.launch(RANK_EXCHANGE, (), "own_ids", grid, (ids, *sizes, out, checks.int32("count", count)))
    return out


def _grid(rows: int, columns: int) -> tuple[int, int]:
    return checks.ceil_div(columns, RANK_EXCHANGE.threads), checks.grid_rows("rows", rows)
