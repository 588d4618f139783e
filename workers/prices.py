"""What steps cost on this machine, measured before the first plan. Several ranks measure together: the clock that each asks is rank
0's, so all take the same decisions and run the same steps. Leaves no KV and no recurrent state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workers.held_model import HeldModel
from workers.inputs import BLOCK_SIZE, StepInputs

PRICE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
PRICE_RUNS = 4
PRICE_LOGIT_ROWS = 8
PRICE_SEQUENCES = 8  # decoding beside each other, for the price of a position
PRICE_POSITIONS = 1024  # that each of them, or a prompt's row, attends to
PRICE_KV_BYTES = 128 * 2**20  # that a measurement may take at most
PRICE_BUDGET_S = 1.0


@dataclass(frozen=True)
class Prices:
    """As in messages.Loaded."""

    rows: list[tuple[int, float]]
    logit_row_ms: float
    decode_position_ms: float
    prompt_position_ms: float


@dataclass(frozen=True)
class PriceTaker:
    """`clock` is in seconds. `agree` turns a number that ranks may see differently into rank 0's."""

    held: HeldModel
    clock: Callable[[], float]
    agree: Callable[[float], float] = float

    def take(self) -> Prices:
        rows = self.of_rows()
        decode, prompt = self.of_positions()
        return Prices(rows, self.of_logit_row(), decode, prompt)

    def of_rows(self) -> list[tuple[int, float]]:
        """(rows, milliseconds) of a forward, the fastest of a few runs each, within PRICE_BUDGET_S in all."""
        prices: list[tuple[int, float]] = []
        sizes = [rows for rows in PRICE_ROWS if rows <= self.held.max_step_tokens]
        self.held.allocate_kv(-(-sizes[-1] // BLOCK_SIZE))
        started = self.clock()
        self._fastest(_probe_step(1))
        for rows in sizes:
            if prices and self.clock() - started > PRICE_BUDGET_S:
                break
            prices.append((rows, self._fastest(_probe_step(rows))))
        return prices

    def of_logit_row(self) -> float:
        """Milliseconds that a row costs by wanting logits, from a step of a few that all do and one of as many that do not."""
        rows = min(PRICE_LOGIT_ROWS, self.held.max_step_tokens, self.held.max_seats)
        few, all_of_them = (self._fastest(_probe_step(rows, logit_rows)) for logit_rows in (1, rows))
        return max(0.0, all_of_them - few) / max(1, rows - 1)

    def of_positions(self) -> tuple[float, float]:
        """Milliseconds of a position that a decoding row attends to, and of one that a row of a prompt does: from a step far into
        its context and one at its beginning."""
        held = self.held
        sequences = min(PRICE_SEQUENCES, held.max_seats, held.max_step_tokens)
        in_memory = int(self.agree(PRICE_KV_BYTES // held.bytes_per_block() // sequences))
        blocks = min(PRICE_POSITIONS // BLOCK_SIZE, held.context // BLOCK_SIZE, in_memory)
        if blocks < 2:
            return 0.0, 0.0
        held.allocate_kv(blocks * sequences)
        rows, positions = PRICE_LOGIT_ROWS, blocks * BLOCK_SIZE
        decode = self._slope(_decode_step(sequences, 1), _decode_step(sequences, blocks), sequences * (positions - BLOCK_SIZE))
        prompt = self._slope(_prompt_step(rows, 1), _prompt_step(rows, blocks), rows * (positions - BLOCK_SIZE))
        held.allocate_kv(1)
        return decode, prompt

    def _slope(self, near: StepInputs, far: StepInputs, more_positions: int) -> float:
        return max(0.0, self._fastest(far) - self._fastest(near)) / more_positions

    def _fastest(self, step: StepInputs) -> float:
        """Milliseconds of the fastest of PRICE_RUNS runs, or of fewer where one takes long."""
        held = self.held
        if held.recurrent is not None:
            sequences = len(step.context_lens)
            held.ops.allocate_state(held.recurrent, sequences)
            step = replace(step, state_slots=np.arange(sequences, dtype=np.int32))
        started = self.clock()
        times: list[float] = []
        while len(times) < PRICE_RUNS and self.clock() - started < PRICE_BUDGET_S / len(PRICE_ROWS):
            before = self.clock()
            held.run(step)
            times.append((self.clock() - before) * 1e3)
        if held.recurrent is not None:
            held.ops.allocate_state(held.recurrent, 0)
        return min(times)


def _probe_step(rows: int, logit_rows: int = 1) -> StepInputs:
    """One sequence of `rows` new tokens of which the last `logit_rows` want logits."""
    blocks = -(-rows // BLOCK_SIZE)
    return StepInputs(
        token_ids=np.zeros(rows, np.int32),
        positions=np.arange(rows, dtype=np.int32),
        sequence_of_row=np.zeros(rows, np.int32),
        row_start=np.array([0, rows], np.int32),
        context_lens=np.array([rows], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.arange(rows - logit_rows, rows, dtype=np.int32),
    )


def _decode_step(sequences: int, blocks: int) -> StepInputs:
    """A row each of sequences that fill so many blocks of their own."""
    rows = np.arange(sequences, dtype=np.int32)
    length = blocks * BLOCK_SIZE
    return StepInputs(
        token_ids=np.zeros(sequences, np.int32),
        positions=np.full(sequences, length - 1, np.int32),
        sequence_of_row=rows,
        row_start=np.arange(sequences + 1, dtype=np.int32),
        context_lens=np.full(sequences, length, np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logit_rows=rows,
    )


def _prompt_step(rows: int, blocks: int) -> StepInputs:
    """The last rows of one sequence that fills so many blocks."""
    length = blocks * BLOCK_SIZE
    return StepInputs(
        token_ids=np.zeros(rows, np.int32),
        positions=np.arange(length - rows, length, dtype=np.int32),
        sequence_of_row=np.zeros(rows, np.int32),
        row_start=np.array([0, rows], np.int32),
        context_lens=np.array([length], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.array([rows - 1], np.int32),
    )
