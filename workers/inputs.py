"""What one step computes, as arrays. Pure: a plan's columns and the seats in, arrays out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ipc.messages import Plan
from workers.seats import PlanError, Seat, Seats

Int32 = NDArray[np.int32]

BLOCK_SIZE = 16  # S: tokens in a KV block


@dataclass(frozen=True)
class StepInputs:
    """One step over B sequences with N new tokens in all, of which R positions want logits.

    A sequence's rows are neighbours, in rising position. `block_tables` rows are padded with 0 past what the sequence holds.
    """

    token_ids: Int32  # N
    positions: Int32  # N, absolute index in prompt + output
    sequence_of_row: Int32  # N, index into B
    row_start: Int32  # B + 1, rows row_start[b]:row_start[b + 1] belong to sequence b
    context_lens: Int32  # B, tokens in the KV cache once this step has written
    block_tables: Int32  # B x T, KV block of positions 16 t .. 16 t + 15
    logit_rows: Int32  # R, rows of N
    state_slots: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))  # B, where each has its recurrent state: its seat


def build(plan: Plan, fed: list[list[int]], seats: Seats, vocab: int) -> StepInputs:
    """The arrays of a plan whose parts compute the ids `fed`. Raises PlanError."""
    counts = np.array(plan.counts, np.int32)
    starts = np.array(plan.starts, np.int32)
    row_start = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=row_start[1:])
    sequence_of_row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    positions = np.arange(row_start[-1], dtype=np.int32) - row_start[sequence_of_row] + starts[sequence_of_row]
    token_ids = np.array([token for ids in fed for token in ids], np.int32)
    context_lens = starts + counts
    for index, end in zip(plan.seats, context_lens.tolist(), strict=True):
        if end > seats[index].num_blocks * BLOCK_SIZE:
            raise PlanError(f"seat {index} has {seats[index].num_blocks} blocks; {end} tokens do not fit")
    if token_ids.size and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab:
        raise PlanError(f"token id {int(token_ids.max())} of {vocab}")
    widest = -(-int(context_lens.max(initial=0)) // BLOCK_SIZE)
    tables = np.ascontiguousarray(seats.block_tables[plan.seats, :widest])
    wanted = logit_rows(plan, row_start, seats)
    slots = np.array(plan.seats, np.int32)
    return StepInputs(token_ids, positions, sequence_of_row, row_start, context_lens, tables, wanted, slots)


def logit_rows(plan: Plan, row_start: Int32, seats: Seats) -> Int32:
    """The rows that want logits, rising: those before a prompt token that is scored, and the last of each part that draws."""
    wanted: list[int] = []
    for index, first, start, count, samples in zip(
        plan.seats, row_start.tolist(), plan.starts, plan.counts, plan.samples, strict=False
    ):
        scored = scored_count(seats[index], start, count)
        wanted.extend(range(first, first + scored))
        if samples:
            wanted.append(first + count - 1)
    return np.array(wanted, np.int32)


def scored_count(seat: Seat, start: int, count: int) -> int:
    """How many rows of a part, from its first, come before a prompt token whose log probability is asked for."""
    return max(0, min(start + count, seat.prompt_len - 1) - start) if seat.params.prompt_logprobs >= 0 else 0
