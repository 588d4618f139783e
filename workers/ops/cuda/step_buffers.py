"""A step's inputs on the device: one block of int32 at one address, so that a captured graph finds each step there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from workers.inputs import StepInputs


@dataclass(frozen=True)
class DeviceStep:
    """StepInputs on the device, padded to whole buckets: rows past the step have id -1, sequence -1 and position 0; sequences past it
    have no rows and slot -1; logit rows past it are row 0."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    sequence_of_row: torch.Tensor
    row_start: torch.Tensor
    block_tables: torch.Tensor
    logit_rows: torch.Tensor
    state_slots: torch.Tensor


@dataclass(frozen=True)
class Bucket:
    """How many rows N, sequences B and logit rows R are computed, and the width T of the block tables."""

    rows: int
    sequences: int
    logit_rows: int
    table_width: int

    @property
    def is_decode(self) -> bool:
        """A row a sequence, and logits of each."""
        return self.rows == self.sequences == self.logit_rows

    @property
    def elements(self) -> int:
        return 3 * self.rows + self.sequences + 1 + self.sequences * self.table_width + self.logit_rows + self.sequences


class StepBuffers:
    """Holds the largest step asked for yet. `moved` counts how often the memory changed its place."""

    def __init__(self, torch_device: str) -> None:
        self._torch_device = torch_device
        self._device = torch.empty(0, dtype=torch.int32)
        self.moved = 0

    def reserve(self, bucket: Bucket) -> None:
        """Room for a step of this size, so that it moves nothing later."""
        if bucket.elements > len(self._device):
            self._device = torch.empty(bucket.elements, dtype=torch.int32, device=self._torch_device)
            self.moved += 1

    def fill(self, inputs: StepInputs, bucket: Bucket) -> DeviceStep:
        """Copies a step in, in one transfer, and returns it as views."""
        self.reserve(bucket)
        host = np.full(bucket.elements, -1, np.int32)
        places, at = [], 0

        def put(values: NDArray[np.int32], size: int, padding: int) -> None:
            nonlocal at
            host[at : at + values.size] = values.reshape(-1)
            host[at + values.size : at + size] = padding
            places.append(slice(at, at + size))
            at += size

        tables = np.zeros((bucket.sequences, bucket.table_width), np.int32)
        tables[: len(inputs.block_tables), : inputs.block_tables.shape[1]] = inputs.block_tables
        slots = inputs.state_slots if len(inputs.state_slots) else np.full(len(inputs.context_lens), -1, np.int32)
        put(inputs.token_ids, bucket.rows, -1)
        put(inputs.positions, bucket.rows, 0)
        put(inputs.sequence_of_row, bucket.rows, -1)
        put(inputs.row_start, bucket.sequences + 1, int(inputs.row_start[-1]))
        put(tables, tables.size, 0)
        put(inputs.logit_rows, bucket.logit_rows, 0)
        put(slots, bucket.sequences, -1)
        self._device[: bucket.elements].copy_(torch.from_numpy(host))
        views = [self._device[place] for place in places]
        views[4] = views[4].view(bucket.sequences, bucket.table_width)
        return DeviceStep(*views)


def check_step(inputs: StepInputs, vocab: int, blocks: int, slots: int | None) -> None:
    """Nothing that addresses device memory is believed. `slots` is None where there is no recurrent state. Raises ValueError."""
    rows, sequences = len(inputs.token_ids), len(inputs.context_lens)
    counts = np.diff(inputs.row_start)
    wrong = [
        (len(inputs.positions) != rows or len(inputs.sequence_of_row) != rows, "rows of different numbers"),
        (len(inputs.row_start) != sequences + 1 or len(inputs.block_tables) != sequences, "sequences of different numbers"),
        (
            inputs.row_start[0] != 0 or inputs.row_start[-1] != rows or bool((counts < 0).any()),
            "row_start that does not divide the rows",
        ),
        (_outside(inputs.token_ids, vocab), "a token id outside the vocabulary"),
        (_outside(inputs.block_tables, blocks), "a block that does not exist"),
        (_outside(inputs.logit_rows, rows), "a row that does not exist"),
        (slots is not None and _outside(inputs.state_slots, slots), "a state slot that does not exist"),
        (len(np.unique(inputs.state_slots)) != len(inputs.state_slots), "a state slot that two sequences share"),
    ]
    for is_wrong, what in wrong:
        if is_wrong:
            raise ValueError(f"a step's inputs are wrong: {what}")
    owner = np.repeat(np.arange(sequences), counts)
    width = 16 * inputs.block_tables.shape[1]
    if not np.array_equal(owner, inputs.sequence_of_row):
        raise ValueError("a step's inputs are wrong: a row outside its sequence")
    if bool((inputs.context_lens > width).any()):
        raise ValueError("a step's inputs are wrong: a sequence longer than its block table")
    if bool((inputs.positions < 0).any()) or bool((inputs.positions >= inputs.context_lens[owner]).any()):
        raise ValueError("a step's inputs are wrong: a position outside its sequence")


def _outside(values: NDArray[np.int32], end: int) -> bool:
    return bool(values.size) and not 0 <= int(values.min()) <= int(values.max()) < end
