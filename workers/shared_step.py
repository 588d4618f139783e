"""What the ranks of one model share: each step's inputs in a ring of two slots, and the logits. Memory is memfd on CPUs.

Rank 0 numbers what it writes, 1 and up, and writes into slot `number % 2`: a step, or that a plan's steps have ended early. Every
other rank opens the handle, copies the slot once it hears of it (workers/group.py), and acknowledges by writing the number it copied.
A slot is written again only when all ranks have copied what it held, which they have: each step has met all of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ipc.shared_array import ArrayHandle, SharedArrays
from workers.inputs import BLOCK_SIZE, StepInputs

SLOTS = 2
HOST_HANDLES = 3  # that rank 0 exports: the group's board, the steps and the logits; what follows is of its device
_NUMBERS = 2**30  # after which numbers begin again, as many as slots divide
_FIELDS = tuple(field.name for field in fields(StepInputs))
_HEADER = 2 + 2 * len(_FIELDS)  # number, whether it is a step, then (rows, columns) of each array


@dataclass(frozen=True)
class Capacity:
    """The largest step: N new tokens, B sequences, T blocks in a table."""

    tokens: int
    sequences: int
    blocks: int

    @classmethod
    def of(cls, max_step_tokens: int, seats: int, context: int) -> Capacity:
        return cls(max(max_step_tokens, seats), seats, -(-context // BLOCK_SIZE))

    def sizes(self) -> dict[str, int]:
        """Elements set aside for each array of StepInputs."""
        return {
            "token_ids": self.tokens,
            "positions": self.tokens,
            "sequence_of_row": self.tokens,
            "row_start": self.sequences + 1,
            "context_lens": self.sequences,
            "block_tables": self.sequences * self.blocks,
            "logit_rows": self.sequences,
            "state_slots": self.sequences,
        }

    @property
    def slot_elements(self) -> int:
        return _HEADER + sum(self.sizes().values())


class StepRing:
    """Rank 0's end: allocates, writes, hands out handles."""

    def __init__(self, arrays: SharedArrays, capacity: Capacity, ranks: int = 1) -> None:
        self._capacity = capacity
        self._shape = (SLOTS * capacity.slot_elements + max(1, ranks - 1),)
        self._allocation = arrays.allocate(self._shape[0] * 4)
        memory: NDArray[np.int32] = self._allocation.array(self._shape, "int32")
        self._slots = memory[: SLOTS * capacity.slot_elements].reshape(SLOTS, -1)
        self._copied = memory[SLOTS * capacity.slot_elements :]
        self._ranks = ranks
        self._number = 0

    def handle(self) -> ArrayHandle:
        return self._allocation.export(self._shape, "int32")

    def write(self, inputs: StepInputs) -> StepInputs:
        """Copies a step in and returns it as views of the shared slot. Raises ValueError for one beyond the capacity, or while a
        rank has not copied what the slot held."""
        slot = self._next_slot()
        at, views = _HEADER, {}
        for index, (name, size) in enumerate(self._capacity.sizes().items()):
            values: NDArray[np.int32] = getattr(inputs, name)
            if values.size > size:
                raise ValueError(f"{name} of {values.size} elements; the ring holds {size}")
            slot[2 + 2 * index : 4 + 2 * index] = (len(values), values.shape[1] if values.ndim == 2 else 0)
            view = slot[at : at + values.size].reshape(values.shape)
            view[...] = values
            views[name] = view
            at += size
        self._publish(slot, is_step=True)
        return StepInputs(**views)

    def write_end(self) -> None:
        """No step follows within the plan. As `write`."""
        self._publish(self._next_slot(), is_step=False)

    def _next_slot(self) -> NDArray[np.int32]:
        slot: NDArray[np.int32] = self._slots[(self._number + 1) % SLOTS]
        behind = ((int(copied) - int(slot[0])) % _NUMBERS >= _NUMBERS // 2 for copied in self._copied)
        if self._ranks > 1 and slot[0] and any(behind):
            raise ValueError(f"a rank has not copied number {slot[0]} yet")
        return slot

    def _publish(self, slot: NDArray[np.int32], is_step: bool) -> None:
        self._number = (self._number + 1) % _NUMBERS
        slot[:2] = self._number, is_step

    def close(self) -> None:
        del self._slots, self._copied
        with contextlib.suppress(BufferError):  # whoever still looks at a step frees it
            self._allocation.close()


class StepReader:
    """Another rank's end."""

    def __init__(self, arrays: SharedArrays, handle: ArrayHandle, capacity: Capacity, rank: int) -> None:
        self._opened = arrays.open(handle)
        self._capacity = capacity
        memory: NDArray[np.int32] = self._opened.array
        self._slots = memory[: SLOTS * capacity.slot_elements].reshape(SLOTS, -1)
        self._copied = memory[SLOTS * capacity.slot_elements :]
        self._rank = rank
        self._number = 0

    def read(self) -> StepInputs | None:
        """A private copy of the next step, or None for the end of a plan; acknowledged. Raises ValueError where the slot holds
        another."""
        number = (self._number + 1) % _NUMBERS
        slot = self._slots[number % SLOTS]
        if slot[0] != number:
            raise ValueError(f"slot {number % SLOTS} holds number {slot[0]}, not {number}")
        inputs = self._copy(slot) if slot[1] else None
        self._number = self._copied[self._rank - 1] = number
        return inputs

    def _copy(self, slot: NDArray[np.int32]) -> StepInputs:
        at, values = _HEADER, {}
        for index, (name, size) in enumerate(self._capacity.sizes().items()):
            rows, columns = (int(number) for number in slot[2 + 2 * index : 4 + 2 * index])
            count = rows * max(columns, 1) if name != "block_tables" else rows * columns
            part = slot[at : at + count].copy()
            values[name] = part.reshape(rows, columns) if name == "block_tables" else part
            at += size
        return StepInputs(**values)

    def close(self) -> None:
        del self._slots, self._copied
        self._opened.close()
