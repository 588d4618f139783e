"""Which of a model's weights stay on the device, and which come through a few slots when they are read. Pure.

Every pass reads all weights in one order. A cache that keeps what was read last would hold nothing of what is read next; so what is kept is
kept for good, spread evenly over the pass, and a scan of the rest pushes nothing out. While a kept weight is read, the next ones of the
rest are on their way.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOTS = 3  # one is read, and two are on their way


class KeptShare:
    """Decides, weight by weight as they are loaded, which stay: so many of `total` bytes that they are at most `budget`, spread evenly.
    The first always stays: the vocabulary's table, of which single rows are read."""

    def __init__(self, budget: int, total: int) -> None:
        self._budget, self._total = budget, total  # what the first leaves of them, once it is known
        self._first = True
        self.kept = 0  # bytes
        self._kept_of_rest = self._seen = 0

    def keeps(self, nbytes: int) -> bool:
        """Whether the next weight stays."""
        if self._first:
            self._first, self._budget, self._total = False, max(0, self._budget - nbytes), self._total - nbytes
            self.kept += nbytes
            return True
        self._seen += nbytes
        # in whole numbers: kept / seen is at most budget / total
        stays = (self._kept_of_rest + nbytes) * self._total <= self._budget * min(self._seen, self._total)
        self._kept_of_rest += nbytes * stays
        self.kept += nbytes * stays
        return stays

    def keep_too(self, nbytes: int) -> None:
        """One that was to be streamed stays after all."""
        self.kept += nbytes


@dataclass
class Counters:
    """`hits`: reads of a weight that was where it was read; `page_ins`: copies to the device, of `htod_bytes` in all; `evictions`: those
    that took the place of another. `tokens`: for which a pass made logits."""

    hits: int = 0
    page_ins: int = 0
    evictions: int = 0
    htod_bytes: int = 0
    tokens: int = 0

    def add(self, other: Counters) -> None:
        self.hits += other.hits
        self.page_ins += other.page_ins
        self.evictions += other.evictions
        self.htod_bytes += other.htod_bytes
        self.tokens += other.tokens

    @property
    def hit_rate(self) -> float:
        """Of all reads."""
        return self.hits / max(1, self.hits + self.page_ins)

    @property
    def htod_bytes_per_token(self) -> float:
        return self.htod_bytes / max(1, self.tokens)


class Turns:
    """The order in which a pass reads the weights that are streamed, learnt from the first pass. A weight has one slot; those of a slot
    take turns, and each pass begins with the first of them in place."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._order: list[int] = []
        self._place: dict[int, int] = {}
        self.settled = False

    def read(self, page: int) -> None:
        """In the first pass: this one is next."""
        if not self.settled and page not in self._place:
            self._place[page] = len(self._order)
            self._order.append(page)

    def settle(self) -> None:
        """The first pass is over."""
        self.settled = bool(self._order)

    def __contains__(self, page: int) -> bool:
        return page in self._place

    def slot(self, page: int) -> int:
        return self._place[page] % self._slots

    def after(self, page: int) -> int:
        """Whose turn it is in this one's slot once it has been read: the slot's first where it was the last."""
        place = self._place[page] + self._slots
        return self._order[place if place < len(self._order) else place % self._slots]

    def first(self) -> list[int]:
        """Those that a pass begins with, by slot."""
        return self._order[: self._slots] if self.settled else []
