"""Captured forwards by bucket: decode steps of up to so many rows are replayed, all else runs op by op; both give equal bits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.ops.cuda.place import CaptureError, Place
from workers.ops.cuda.step_buffers import Bucket

log = logging.getLogger("worker.graphs")

LARGEST_CAPTURED = 64  # rows
Forward = Callable[..., object]


@dataclass
class _Captured:
    replay: Callable[[], None]
    logits: torch.Tensor


def bucket_of(count: int) -> int:
    """The power of two that holds it."""
    return 1 << max(0, count - 1).bit_length()


class Graphs:
    """`captures` counts forwards captured, `replays` steps run from one, `fallbacks` steps run op by op, `invalidations` graphs thrown
    away as what they point to moved. While they are `held_back` every step runs op by op."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.held_back = False
        self._held: dict[tuple[Forward, Bucket], _Captured | None] = {}
        self.captures = self.replays = self.fallbacks = self.invalidations = 0

    def invalidate(self) -> None:
        self.invalidations += sum(held is not None for held in self._held.values())
        self._held.clear()

    def run(self, forward: Forward, bucket: Bucket, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The logits of a step that lies in the buffers. `compute` is the forward on them. The first step of a bucket runs op by op,
        which also loads every kernel that the capture after it needs."""
        key = (forward, bucket)
        captured = self._held.get(key)
        if captured is not None:
            captured.replay()
            self.replays += 1
            return captured.logits
        logits = compute()
        self.fallbacks += 1
        if not self.held_back and bucket.rows <= LARGEST_CAPTURED and bucket.is_decode and key not in self._held:
            self._held[key] = self._capture(compute)
        return logits

    def _capture(self, compute: Callable[[], torch.Tensor]) -> _Captured | None:
        results: list[torch.Tensor] = []
        try:
            replay = self._place.capture(lambda: results.append(compute()))
        except CaptureError as error:
            log.warning("a step could not be captured and runs op by op: %s", error)
            return None
        self.captures += 1
        return _Captured(replay, results[-1])
