"""One op set and model against another over a text: KL divergence, perplexity, agreement of the best token, and time.

Both sides run the same windows of tokens in the same steps, so no logits are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import Model, RecurrentModel
from workers.ops.protocol import Ops

WINDOW, ROWS = 1000, 50  # tokens of a window, and of a step

Ids = NDArray[np.int32]
Logits = NDArray[np.float64]


@dataclass(frozen=True)
class Side:
    """A loaded model, and the ops that run it."""

    model: Model
    ops: Ops


@dataclass(frozen=True)
class Comparison:
    """Of the second side to the first. KL divergences are in nats, of each token's whole distribution; speeds in tokens a second."""

    tokens: int
    kl_mean: float
    kl_p99: float
    kl_max: float
    perplexity_float32: float
    perplexity: float
    perplexity_change: float
    best_token_agrees: float
    tokens_per_second_float32: float
    tokens_per_second: float


def compare(first: Side, second: Side, ids: Ids) -> Comparison:
    """`ids` are read in windows of WINDOW, each from an empty cache."""
    sides = (first, second)
    for side in sides:
        _allocate(side)
    divergences: list[float] = []
    agree: list[bool] = []
    losses: tuple[list[float], list[float]] = ([], [])
    seconds = [0.0, 0.0]
    for begin in range(0, len(ids), WINDOW):
        window = ids[begin : begin + WINDOW]
        for number, step in enumerate(steps(window)):
            values = []
            for index, side in enumerate(sides):
                started = time.perf_counter()
                logits = side.ops.run(side.model.forward, step)
                seconds[index] += time.perf_counter() - started
                values.append(log_softmax(np.asarray(logits)))
            expected, got = values
            divergences += (np.exp(expected) * (expected - got)).sum(axis=-1).tolist()
            agree += (expected.argmax(axis=-1) == got.argmax(axis=-1)).tolist()
            following = window[number * ROWS + 1 : number * ROWS + 1 + len(expected)]
            for own, rows in zip(losses, values, strict=True):
                own += (-rows[np.arange(len(following)), following]).tolist()
    perplexity = [float(np.exp(np.mean(own))) for own in losses]
    return Comparison(
        tokens=len(divergences),
        kl_mean=float(np.mean(divergences)),
        kl_p99=float(np.quantile(divergences, 0.99)),
        kl_max=float(np.max(divergences)),
        perplexity_float32=perplexity[0],
        perplexity=perplexity[1],
        perplexity_change=perplexity[1] / perplexity[0] - 1,
        best_token_agrees=float(np.mean(agree)),
        tokens_per_second_float32=len(ids) / seconds[0],
        tokens_per_second=len(ids) / seconds[1],
    )


def steps(window: Ids) -> Iterator[StepInputs]:
    """One window as steps of ROWS tokens that all want logits."""
    blocks = np.arange(-(-WINDOW // BLOCK_SIZE), dtype=np.int32)[None]
    for start in range(0, len(window), ROWS):
        part = window[start : start + ROWS].astype(np.int32)
        count = len(part)
        yield StepInputs(
            token_ids=part,
            positions=np.arange(start, start + count, dtype=np.int32),
            sequence_of_row=np.zeros(count, np.int32),
            row_start=np.array([0, count], np.int32),
            context_lens=np.array([start + count], np.int32),
            block_tables=blocks,
            logit_rows=np.arange(count, dtype=np.int32),
            state_slots=np.zeros(1, np.int32),
        )


def log_softmax(logits: NDArray[np.float32]) -> Logits:
    wide: Logits = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def _allocate(side: Side) -> None:
    model = side.model
    if isinstance(model, RecurrentModel):
        side.ops.allocate_state(model.recurrent, 1)
    side.ops.allocate_kv(model.layers, -(-WINDOW // BLOCK_SIZE), model.kv_heads, model.head_dim)
