"""Which rows of a weight, so which columns of what it makes, each rank of a model holds. Pure.

Every linear is cut by its outputs and none by what it sums over, so no sum is ever parted: a rank computes some columns just as it
would beside the others, and whole rows are gathered from all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from helexa.errors import ModelFileError

GATED_UNIT = 32  # columns of gate and up that the native ops join at a time
GROUP_UNIT = 16  # rows of a weight that the native ops pack together


@dataclass(frozen=True)
class Part:
    """What rank `rank` holds of columns that are shared out: `widths` of them each rank, in order."""

    widths: tuple[int, ...]
    rank: int = 0

    @property
    def total(self) -> int:
        return sum(self.widths)

    @property
    def first(self) -> int:
        return sum(self.widths[: self.rank])

    @property
    def width(self) -> int:
        return self.widths[self.rank]

    @property
    def end(self) -> int:
        return self.first + self.width

    @property
    def is_whole(self) -> bool:
        return len(self.widths) == 1

    def times(self, size: int) -> Part:
        """The same of `size` times as many columns: of heads, their columns."""
        return Part(tuple(width * size for width in self.widths), self.rank)


@dataclass(frozen=True)
class Shard:
    """This process is rank `rank` of `ranks` that hold a model together."""

    rank: int = 0
    ranks: int = 1

    def part(self, total: int, unit: int = 1) -> Part:
        """`total` columns shared out evenly by whole units, or by smaller ones where there are fewer than ranks."""
        while -(-total // unit) < self.ranks and unit > 1:
            unit //= 2
        units = -(-total // unit)
        edges = [min(total, units * rank // self.ranks * unit) for rank in range(self.ranks + 1)]
        return Part(tuple(end - start for start, end in pairwise(edges)), self.rank)

    def heads(self, count: int, what: str, path: object) -> Part:
        """Whole heads. ModelFileError where there are fewer than ranks."""
        if count < self.ranks:
            raise ModelFileError(
                f"{path}: {count} {what} cannot be shared by {self.ranks} ranks: set devices.tensor_parallel to at most {count}"
            )
        return self.part(count)


WHOLE = Shard()
