"""How much a step may hold, by predicted time, and its plan as columns."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from helexa.scheduler.sequence import Sequence
from ipc.messages import Plan, SeatJoin


class PriceTable:
    """Predicted milliseconds of a step by its rows: linear between the measured points, and beyond the last two."""

    def __init__(self, prices: Seq[tuple[int, float]]) -> None:
        points = sorted(prices)
        if not points:
            points = [(1, 0.0)]
        self._rows = [rows for rows, _ in points]
        self._ms: list[float] = []
        for _, milliseconds in points:  # a measured table may dip; a prediction never falls with more rows
            self._ms.append(max(milliseconds, self._ms[-1] if self._ms else 0.0))

    def milliseconds(self, rows: int) -> float:
        at = bisect_left(self._rows, rows)
        if (at < len(self._rows) and self._rows[at] == rows) or at == 0:
            return self._ms[min(at, len(self._ms) - 1)]
        if len(self._rows) == 1:
            return self._ms[0] * rows / self._rows[0]
        low = min(at, len(self._rows) - 1) - 1
        share = (rows - self._rows[low]) / (self._rows[low + 1] - self._rows[low])
        return self._ms[low] + share * (self._ms[low + 1] - self._ms[low])

    def most_rows(self, budget_ms: float, ceiling: int) -> int:
        """The most rows, at most `ceiling`, whose predicted time is within the budget; 0 when not even one is."""
        low, high = 0, ceiling
        while low < high:
            middle = (low + high + 1) // 2
            if self.milliseconds(middle) <= budget_ms:
                low = middle
            else:
                high = middle - 1
        return low


def prefill_budget(decode_rows: int, prices: PriceTable, step_tokens: int, min_step_ms: float) -> int:
    """Prompt tokens that may join `decode_rows` decoding rows: the step then lasts at most twice a decode-only one, or
    `min_step_ms`. Alone they may fill `step_tokens`. At least one, so that a prompt always moves."""
    if decode_rows == 0:
        return step_tokens
    bound = max(2.0 * prices.milliseconds(decode_rows), min_step_ms)
    return max(1, min(prices.most_rows(bound, step_tokens) - decode_rows, step_tokens - decode_rows))


@dataclass
class StepBuilder:
    """Collects a step's parts; `plan()` lays them out as the worker reads them."""

    parts: list[tuple[Sequence, int]] = field(default_factory=list)  # (sequence, tokens of this step)

    def add(self, sequence: Sequence, count: int) -> None:
        self.parts.append((sequence, count))

    def drop(self, sequence: Sequence) -> None:
        """Takes back what was added for a sequence that lost its seat while the step was being built."""
        self.parts = [part for part in self.parts if part[0] is not sequence]

    def plan(self, incarnation: int, step: int, repeat: int, leaves: list[int]) -> Plan:
        """The step's plan; from here on the worker is taken to know what it says."""
        plan = Plan(incarnation, step, repeat, leaves, [], [], [], [], [], [], [], [], [])
        for sequence, count in self.parts:
            start, seat = sequence.num_computed_tokens, sequence.seat
            if not sequence.joined:
                sequence.joined = True
                plan.joins.append(_join(sequence))
            if len(sequence.blocks) > sequence.num_told_blocks:
                blocks = sequence.blocks[sequence.num_told_blocks :]
                plan.block_seats.extend([seat] * len(blocks))
                plan.blocks.extend(blocks)
                sequence.num_told_blocks = len(sequence.blocks)
            plan.seats.append(seat)
            plan.starts.append(start)
            plan.counts.append(count)
            if count == 1 and sequence.sampled_last:
                plan.carried.append(0)
            else:
                plan.carried.append(count)
                plan.ids.extend(sequence.tokens[start : start + count])
            plan.samples.append(start + count == len(sequence.tokens))
        return plan


def _join(sequence: Sequence) -> SeatJoin:
    request = sequence.request
    history = array("i", sequence.tokens[: sequence.num_computed_tokens])
    if sys.byteorder == "big":
        history.byteswap()
    return SeatJoin(sequence.seat, sequence.seed, request.prompt_len, request.params, history.tobytes())
