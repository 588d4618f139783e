"""What a step will cost, by predicted time. Pure: measured times come in as values.

A step's milliseconds are those of its rows (a table that the worker measured when it loaded the model), of its rows that want
logits, and of the positions that its rows attend to: rows of one prompt share what they read, decoding rows do not. What comes on
top of every step (sampling, messages) is learned from the steps that only decode.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

LEARN_SHARES = (
    0.02,
    0.2,
)  # of a new observation in what is learned, when it is dearer and when it is cheaper: noise only ever adds


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


@dataclass(frozen=True)
class Shape:
    """What a step's time depends on. `decode_positions` and `prompt_positions`: the sums, over its decoding rows and over its rows
    of prompts, of the positions each attends to."""

    rows: int = 0
    logit_rows: int = 0
    decode_positions: int = 0
    prompt_positions: int = 0

    def plus_prompt(self, start: int, count: int) -> Shape:
        """With `count` more rows of a prompt, from position `start` on, the last of which may want logits."""
        positions = self.prompt_positions + count * (start + count)
        return replace(self, rows=self.rows + count, logit_rows=self.logit_rows + 1, prompt_positions=positions)


@dataclass(frozen=True)
class UnitPrices:
    """Milliseconds of one more: row that wants logits, position that a decoding row attends to, or one that a prompt's row does."""

    logit_row: float = 0.0
    decode_position: float = 0.0
    prompt_position: float = 0.0


class StepPrices:
    def __init__(self, table: PriceTable, units: UnitPrices | None = None) -> None:
        self.table = table
        self.units = units or UnitPrices()
        self.overhead_ms = 0.0  # learned

    def predict(self, shape: Shape) -> float:
        """Milliseconds."""
        return self._work_ms(shape) + self.overhead_ms

    def learn(self, shape: Shape, milliseconds: float) -> None:
        """A step of that shape took so long."""
        if shape.prompt_positions:
            return
        seen = max(0.0, milliseconds - self._work_ms(shape))
        self.overhead_ms += (seen - self.overhead_ms) * LEARN_SHARES[seen < self.overhead_ms]

    def _work_ms(self, shape: Shape) -> float:
        units = self.units
        attention = shape.decode_positions * units.decode_position + shape.prompt_positions * units.prompt_position
        return self.table.milliseconds(shape.rows) + shape.logit_rows * units.logit_row + attention

    def prompt_tokens_beside(self, decoding: Shape, start: int, step_tokens: int, min_step_ms: float) -> int:
        """Tokens of a prompt, from position `start` on, that may join decoding rows: the step then lasts at most twice as long as
        without them, or `min_step_ms`. Alone they may fill `step_tokens`. At least one, so that a prompt always moves."""
        if decoding.rows == 0:
            return step_tokens
        bound = max(2.0 * self.predict(decoding), min_step_ms)
        low, high = 1, max(1, step_tokens - decoding.rows)
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(decoding.plus_prompt(start, middle)) <= bound:
                low = middle
            else:
                high = middle - 1
        return low
