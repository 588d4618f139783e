"""Weights of a model larger than the device's memory: those that do not stay lie in the host's pinned memory, and are copied to one of a
few slots before they are read, beside the kernels of others. Copies and kernels wait for each other in the device's own queues, so that a
captured graph holds both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from helexa.errors import ModelFileError
from kernels_cupy.linear.launcher import Weight
from workers.ops.cuda.place import Place
from workers.ops.cuda.residency import SLOTS, Counters, KeptShare, Turns


@dataclass(frozen=True)
class StreamedWeight(Weight):
    """A weight whose `data` is the host's; `page` is its number."""

    page: int = -1


class Streams:
    """All streamed weights of a model. `begin` and `end` enclose each pass; in between `bring` gives a weight where kernels read it, and
    `done` says that the kernels which do are launched."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._share: KeptShare | None = None
        self._pages: list[torch.Tensor] = []
        self._kept: dict[int, torch.Tensor] = {}
        self._turns = Turns()
        self._slots: list[torch.Tensor] = []
        self._holds: list[int] = [-1] * SLOTS
        self._coming: list[object | None] = [None] * SLOTS
        self._pass, self.counters = Counters(), Counters()
        self._passing = False

    def expect(self, total: int, budget: int) -> None:
        """Before the first weight: of `total` bytes at most `budget` stay."""
        self._share = KeptShare(budget, total)

    @property
    def active(self) -> bool:
        return bool(self._pages)

    def stays(self, nbytes: int) -> bool:
        return self._share is None or self._share.keeps(nbytes)

    def add(self, weight: Weight) -> StreamedWeight:
        """`weight` is the host's; it is copied to pinned memory."""
        self._pages.append(self._place.pinned(weight.data))
        return StreamedWeight(self._pages[-1], weight.format, weight.inputs, len(self._pages) - 1)

    def keep(self, weight: Weight) -> Weight:
        """The weight on the device for good, whatever it was to be: one that is not read as a whole."""
        if not isinstance(weight, StreamedWeight):
            return weight
        if weight.page not in self._kept:
            self._kept[weight.page] = weight.data.to(self._place.torch_device)
            if self._share is not None:
                self._share.keep_too(weight.data.numel())
        return Weight(self._kept[weight.page], weight.format, weight.inputs)

    # a pass

    def mend(self) -> None:
        """Before a step, where a pass broke off or was noted in vain: what slots hold is not what was written down."""
        if not self._passing:
            return
        self._passing, self._holds, self._coming = False, [-1] * SLOTS, [None] * SLOTS
        if self._turns.settled:
            self.end()
        else:  # half of an order is none
            self._turns = Turns()

    def begin(self) -> None:
        """All that was launched before is done, copies included."""
        self._pass, self._passing = Counters(), True

    def bring(self, weight: Weight) -> Weight:
        if not isinstance(weight, StreamedWeight):
            self._pass.hits += self.active
            return weight
        if weight.page in self._kept:
            return self.keep(weight)
        if self._turns.settled and weight.page not in self._turns:
            raise ModelFileError("a weight that the first step did not read is streamed; give the GPU more memory")
        self._turns.read(weight.page)
        slot = self._turns.slot(weight.page)
        if self._holds[slot] != weight.page:
            self._copy(slot, weight.page)
        if self._coming[slot] is not None:
            self._place.wait_for(self._coming[slot])
            self._coming[slot] = None
        return replace(weight, data=self._view(slot, weight.page))

    def done(self, weight: Weight) -> None:
        if isinstance(weight, StreamedWeight) and self._turns.settled and weight.page not in self._kept:
            following = self._turns.after(weight.page)
            if following != weight.page:
                self._copy(self._turns.slot(weight.page), following)

    def end(self) -> None:
        """Each slot holds what the next pass reads first, and no copy is under way that a kernel launched later would not wait for."""
        self._turns.settle()
        self._passing = False
        for slot, page in enumerate(self._turns.first()):
            if self._holds[slot] != page:
                self._copy(slot, page)
        for slot, coming in enumerate(self._coming):
            if coming is not None:
                self._place.wait_for(coming)
            self._coming[slot] = None

    def count(self, tokens: int) -> None:
        """A pass like the last one noted was run, launch by launch or from a graph, and made logits for so many tokens."""
        if self.active:
            self.counters.add(self._pass)
            self.counters.tokens += tokens

    def _copy(self, slot: int, page: int) -> None:
        if not self._slots:
            largest = max(held.numel() for held in self._pages)
            self._slots = [torch.empty(largest, dtype=torch.uint8, device=self._place.torch_device) for _ in range(SLOTS)]
        self._pass.page_ins += 1
        self._pass.evictions += self._holds[slot] >= 0
        self._pass.htod_bytes += self._pages[page].numel()
        self._holds[slot] = page
        self._coming[slot] = self._place.copy_ahead(self._view(slot, page), self._pages[page])

    def _view(self, slot: int, page: int) -> torch.Tensor:
        held = self._pages[page]
        return self._slots[slot][: held.numel()].view(held.shape)
