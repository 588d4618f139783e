"""The ranks of one model, which hold a shard each: what they share, and how they meet. Between ranks nothing is ever summed.

The board is a line of 64 bytes a rank, then two regions through which rows are put together. A rank's line has three 32-bit words:

    arrived   twice how often the rank has arrived somewhere, plus 1 once the group was left; others sleep on it (futex)
    sleeps    1 while the rank may sleep on another's line, so that who arrives knows whether anybody has to be woken
    gathers   how many gathers the rank has begun: the next one goes through region `gathers % 2`

Only its own rank changes a line, but for the mark of a group that was left. Who meets arrives, and waits until all others have
arrived as often. One such barrier a gather is enough, because regions take turns: a rank writes to a region again when it has met
all others at the gather in between, and they came there only when they had read the one before.

The native ops have the same in C++ (workers/ops/native/group.h) and may take turns with this.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ipc import futex
from ipc.shared_array import SharedAllocation, SharedArrays

Float32 = NDArray[np.float32]
Parts = Sequence[Sequence[int]]  # of rows: for each of the parts that lie side by side, the columns that each rank holds of it

LINE_BYTES = 64
REGION_FLOATS = 1 << 20
MOST_COLUMNS = REGION_FLOATS // 8  # of a row: the native ops put rows together eight at a time
SPINS = 2000  # rounds of the native ops before they sleep, where every thread has a core of its own
CROWDED_SPINS = 20
_ARRIVED, _SLEEPS, _GATHERS = 0, 4, 8  # bytes into a line
_LEFT, _ARRIVAL = 1, 2


class GroupLeft(Exception):
    """A rank lost its scheduler, or failed: the step in hand is given up, and so is the group."""


def board_bytes(ranks: int) -> int:
    return LINE_BYTES * ranks + 2 * 4 * REGION_FLOATS


@dataclass
class Group:
    """One rank's end. `board` is the memory of `board_bytes(ranks)`, zeroed when rank 0 made it; `logits` is rank 0's buffer.
    Any method that meets the others raises GroupLeft."""

    rank: int
    ranks: int
    board: NDArray[np.uint8]
    logits: Float32
    spins: int = SPINS
    _lines: int = field(init=False)

    def __post_init__(self) -> None:
        self._lines = int(self.board.__array_interface__["data"][0])

    @property
    def left(self) -> bool:
        """Who leaves marks line by line: a rank may have seen the mark of another before its own."""
        return any(futex.load(self._line(rank)) & _LEFT for rank in range(self.ranks))

    def leave(self) -> None:
        """Ends the group for all its ranks, wherever they wait. From any thread."""
        for rank in range(self.ranks):
            futex.set_and_wake(self._line(rank), _LEFT)

    def wait_until_left(self) -> None:
        """For a thread of its own, which wakes whatever does not look at the board."""
        line = self._line(self.rank) + _ARRIVED
        while not (word := futex.load(line)) & _LEFT:
            futex.sleep_while(line, word)

    def tell(self) -> None:
        """Rank 0 goes on; the others may, once they `hear`."""
        self._arrive()

    def hear(self) -> None:
        """Waits for rank 0 to `tell`."""
        self._wait_for(0, self._arrive())

    def meet(self) -> None:
        """Waits for all ranks to come here."""
        target = self._arrive()
        for rank in range(self.ranks):
            if rank != self.rank:
                self._wait_for(rank, target)

    def gather(self, x: Float32, parts: Parts) -> Float32:
        """Whole rows (N, all columns of `parts`) from those that each rank holds, `x` being this one's."""
        here, width = columns_of(parts, self.rank), sum(map(sum, parts))

        def write(region: Float32, first: int) -> None:
            region[:, here] = x[first : first + len(region)]

        return self.put_together(len(x), width, write)

    def put_together(self, rows: int, width: int, write: Callable[[Float32, int], None]) -> Float32:
        """Rows (N, `width`) of which `write(rows here, first)` writes this rank's share, some rows at a time."""
        out = np.empty((rows, width), np.float32)
        if width > MOST_COLUMNS:
            raise ValueError(f"rows of {width} columns do not fit between ranks; {MOST_COLUMNS} do")
        fit = REGION_FLOATS // width
        for first in range(0, rows, fit):
            region = self._next_region()[: min(fit, rows - first) * width].reshape(-1, width)
            write(region, first)
            self.meet()
            out[first : first + fit] = region
        return out

    def agree(self, value: float) -> float:
        """Rank 0's value, on every rank."""
        words = np.array([value]).view(np.float32)[None]
        whole = self.gather(words if self.rank == 0 else words[:, :0], [[2, *[0] * (self.ranks - 1)]])
        return float(whole.view(np.float64)[0, 0])

    def clock(self) -> float:
        """Rank 0's clock, in seconds: what all ranks decide by it, they decide alike."""
        return self.agree(time.perf_counter())

    def _line(self, rank: int) -> int:
        return self._lines + LINE_BYTES * rank

    def _next_region(self) -> Float32:
        word = ctypes.c_uint32.from_address(self._line(self.rank) + _GATHERS)
        turn = word.value % 2
        word.value += 1
        start = LINE_BYTES * self.ranks + turn * 4 * REGION_FLOATS
        region: Float32 = self.board[start : start + 4 * REGION_FLOATS].view(np.float32)
        return region

    def _arrive(self) -> int:
        """How the word of a rank reads that has come here."""
        line = self._line(self.rank)
        futex.add_and_wake(line + _ARRIVED, _ARRIVAL)
        return futex.load(line + _ARRIVED)

    def _wait_for(self, rank: int, target: int) -> None:
        """Says that it sleeps, then sleeps: the kernel looks at the word again, in one order with the other's change of it. A rank
        that has come here and left since is no reason to give up: the next that is waited for will be."""
        line, sleeps = self._line(rank) + _ARRIVED, ctypes.c_uint32.from_address(self._line(self.rank) + _SLEEPS)
        sleeps.value = 1
        while not _is_there(word := futex.load(line), target) and not word & _LEFT:
            futex.sleep_while(line, word)
        sleeps.value = 0
        if not _is_there(word, target):
            raise GroupLeft("a rank has left the group")


def _is_there(word: int, target: int) -> bool:
    """Whether a rank has arrived as often as another when its word was `target`, however often both began again at 0."""
    return ((word & ~_LEFT) - (target & ~_LEFT)) % 2**32 < 2**31


def columns_of(parts: Parts, rank: int) -> NDArray[np.intp]:
    """Which columns of a whole row a rank holds, in its own order."""
    return np.concatenate([np.arange(start, start + width) for start, width in pieces_of(parts, rank)])


def pieces_of(parts: Parts, rank: int) -> list[tuple[int, int]]:
    """(first column of a whole row, how many) of each part that a rank holds."""
    starts = accumulate((sum(widths) for widths in parts), initial=0)
    return [(start + sum(widths[:rank]), widths[rank]) for start, widths in zip(starts, parts, strict=False)]


def new_board(arrays: SharedArrays, ranks: int) -> SharedAllocation:
    """Rank 0's, for all to open."""
    return arrays.allocate(board_bytes(ranks))
