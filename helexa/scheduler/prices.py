"""What a step will cost, by predicted time. Pure: measured times come in as values.

A step's milliseconds are those of its rows (a table that the worker measured when it loaded the model), of its rows that want
logits, and of the positions that its rows attend to; the last price is learned from the steps themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass

LEARN_FROM_POSITIONS = 2048  # below that, a step's time says nothing of attention
LEARN_SHARES = (
    0.05,
    0.3,
)  # of a new observation in the price, when it is dearer and when it is cheaper: noise only ever adds time


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
    """What a step's time depends on. `positions`: the sum over its rows of the positions each attends to."""

    rows: int = 0
    logit_rows: int = 0
    positions: int = 0

    def plus(self, start: int, count: int, samples: bool) -> Shape:
        """With `count` more rows of a sequence, from position `start` on."""
        return Shape(self.rows + count, self.logit_rows + samples, self.positions + count * (start + count))


class StepPrices:
    def __init__(self, table: PriceTable, logit_row_ms: float = 0.0) -> None:
        self.table = table
        self.logit_row_ms = logit_row_ms
        self.position_ms = 0.0  # learned

    def predict(self, shape: Shape) -> float:
        """Milliseconds."""
        return self.table.milliseconds(shape.rows) + shape.logit_rows * self.logit_row_ms + shape.positions * self.position_ms

    def learn(self, shape: Shape, milliseconds: float) -> None:
        """A step of that shape took so long."""
        if shape.positions < LEARN_FROM_POSITIONS:
            return
        rest = milliseconds - self.table.milliseconds(shape.rows) - shape.logit_rows * self.logit_row_ms
        seen = max(0.0, rest) / shape.positions
        share = LEARN_SHARES[seen < self.position_ms] if self.position_ms else 1.0
        self.position_ms += (seen - self.position_ms) * share

    def prompt_tokens_beside(self, decoding: Shape, start: int, step_tokens: int, min_step_ms: float) -> int:
        """Tokens of a prompt, from position `start` on, that may join decoding rows: the step then lasts at most twice as long as
        without them, or `min_step_ms`. Alone they may fill `step_tokens`. At least one, so that a prompt always moves."""
        if decoding.rows == 0:
            return step_tokens
        bound = max(2.0 * self.predict(decoding), min_step_ms)
        low, high = 1, max(1, step_tokens - decoding.rows)
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(decoding.plus(start, middle, True)) <= bound:
                low = middle
            else:
                high = middle - 1
        return low
