"""How the ranks of a model on several GPUs put rows together: in each other's memory, by kernels of one stream, so in a captured graph
too; or through the host's memory, where a GPU cannot map another's."""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np
import torch

from kernels_cupy.checks import GRID_MOST
from kernels_cupy.rank_exchange import launcher
from kernels_cupy.rank_exchange.launcher import Boards
from workers.group import Group, GroupLeft, Parts, columns_of, pieces_of
from workers.ops.cuda.place import Place

ROUNDS = 1 << 28  # of a rank that looks for another, a good half microsecond each: beyond the step watchdog
TRIAL_ROUNDS = 1 << 24  # some ten seconds, in which the others may compile their kernels
_LATE, _LEFT = 1, 2


class Exchange(Protocol):
    captures: bool  # whether a graph may hold it

    def all_gather(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        """See Ops.all_gather."""
        ...

    def gather_rows(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Whole rows x (N, E), each of the rank where its id (N) is not -1."""
        ...

    def gather_logits(self, x: torch.Tensor, widths: list[int]) -> torch.Tensor:
        """See Ops.gather_logits: (R, V), or none."""
        ...

    def check(self) -> None:
        """Once the device is done. Raises GroupLeft where a rank has left, RuntimeError where one did not come."""
        ...

    def close(self) -> None:
        """The group was left, and the device is done."""
        ...


class HostExchange:
    """Through the board of the group."""

    captures = False

    def __init__(self, group: Group, torch_device: str) -> None:
        self._group, self._torch_device = group, torch_device

    def all_gather(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        return torch.from_numpy(self._group.gather(x.cpu().numpy(), parts)).to(self._torch_device)

    def gather_rows(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rows, here = x.cpu().numpy(), ids.cpu().numpy() >= 0

        def write(region: np.ndarray[tuple[int, ...], np.dtype[np.float32]], first: int) -> None:
            some = slice(first, first + len(region))
            region[here[some]] = rows[some][here[some]]

        return torch.from_numpy(self._group.put_together(len(x), x.shape[1], write)).to(self._torch_device)

    def gather_logits(self, x: torch.Tensor, widths: list[int]) -> torch.Tensor:
        group = self._group
        group.logits[: len(x), columns_of([widths], group.rank)] = x.cpu().numpy()
        group.meet()
        return torch.from_numpy(group.logits[: len(x) if group.rank == 0 else 0].copy()).to(self._torch_device)

    def check(self) -> None:
        """Whoever meets has raised."""

    def close(self) -> None:
        """Nothing is its own."""


class PeerExchange:
    """`logits` is rank 0's (rows, V), or where they lie: its address and how many rows there are."""

    captures = True

    def __init__(self, place: Place, group: Group, boards: Boards, logits: torch.Tensor | tuple[int, int]) -> None:
        self._place, self._group, self._boards, self._logits = place, group, boards, logits
        self.rounds = TRIAL_ROUNDS
        self._words = place.pinned(torch.zeros(2, dtype=torch.int32))
        self._watch = threading.Thread(target=self._tell_the_device, name="group", daemon=True)
        self._watch.start()

    def _tell_the_device(self) -> None:
        """A kernel that waits for another rank, and with it this process, ends when the group is left."""
        self._group.wait_until_left()
        self._words[0] = 1

    def all_gather(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        out = x.new_empty((len(x), sum(map(sum, parts))))
        pieces = pieces_of(parts, self._boards.rank)
        for first in range(0, len(x), step := self._rows_of(out.shape[1])):
            at = 0
            for start, width in pieces:
                launcher.push(self._place, self._boards, x[first : first + step, at : at + width], start, out.shape[1])
                at += width
            self._meet()
            launcher.collect(self._place, self._boards, out[first : first + step])
        return out

    def gather_rows(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for first in range(0, len(x), step := self._rows_of(x.shape[1])):
            launcher.push_rows(self._place, self._boards, x[first : first + step], ids[first : first + step])
            self._meet()
            launcher.collect(self._place, self._boards, out[first : first + step])
        return out

    def gather_logits(self, x: torch.Tensor, widths: list[int]) -> torch.Tensor:
        rank, vocab = self._boards.rank, sum(widths)
        if isinstance(self._logits, torch.Tensor):
            address, rows = self._logits.data_ptr(), len(self._logits)
        else:
            address, rows = self._logits
        if len(x) > rows:
            raise ValueError(f"{len(x)} rows want logits; at most {rows} at a time")
        launcher.place(self._place, x, address, sum(widths[:rank]), vocab)
        self._meet()
        return self._logits[: len(x)] if isinstance(self._logits, torch.Tensor) else x.new_empty((0, vocab))

    def _rows_of(self, width: int) -> int:
        """How many rows go through a region at once."""
        if width > self._boards.region:
            raise ValueError(f"rows of {width} columns do not fit between ranks; {self._boards.region} do")
        return min(self._boards.region // width, GRID_MOST)

    def _meet(self) -> None:
        launcher.meet(self._place, self._boards, self.rounds, self._words)

    def try_out(self) -> bool:
        """Whether rows of all ranks arrive, twice in each region."""
        rank, ranks = self._boards.rank, self._boards.ranks
        expected = torch.arange(4 * 3 * ranks, dtype=torch.float32).view(4, 3, ranks)
        own = expected[:, :, rank : rank + 1].contiguous().to(self._boards.addresses.device)
        got = [self.all_gather(rows, [[1] * ranks]) for rows in own]
        self._place.synchronise()
        self.rounds = ROUNDS
        return int(self._words[1]) == 0 and all(torch.equal(rows.cpu(), want) for rows, want in zip(got, expected, strict=True))

    def check(self) -> None:
        fault = int(self._words[1])
        if fault == _LEFT:
            raise GroupLeft("a rank has left the group")
        if fault == _LATE:
            raise RuntimeError("another rank's GPU did not come to a gather")

    def close(self) -> None:
        self._watch.join()
