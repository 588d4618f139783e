"""What a model that makes embeddings answers: a prompt's rows, pooled to one. Pure but for what a seat remembers between parts.

A mean is a sum in the order of positions, so it does not depend on how the prompt was parted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipc.messages import Plan, Pooled
from workers.inputs import scored_count
from workers.ops.protocol import Float32
from workers.sampler import Drawn
from workers.seats import Seats


def pool(plan: Plan, rows: Float32, seats: Seats, pooling: str, end_ids: Sequence[int]) -> tuple[list[Pooled], Drawn]:
    """The embeddings of the prompts that the step completes, and for each an end in place of a drawn token.

    `rows` (R, E) are the step's rows that want logits: with `mean`, which wants all of a prompt's, each request says so by
    `prompt_logprobs` 0.
    """
    found: list[Pooled] = []
    errors: list[str] = []
    at = 0
    for index, start, count, samples in zip(plan.seats, plan.starts, plan.counts, plan.samples, strict=True):
        seat, wanted = seats[index], scored_count(seats[index], start, count) + samples
        part, at = rows[at : at + wanted], at + wanted
        vector = part[-1:].astype(np.float64).sum(axis=0)
        if pooling == "mean":
            if start == 0 or seat.pooled is None:
                seat.pooled = np.zeros(rows.shape[1], np.float64)
            for row in part:
                seat.pooled += row
            vector = seat.pooled / (start + count)
        if samples:
            finite = bool(np.isfinite(vector).all())
            errors.append("" if finite else "the embedding is not finite")
            if finite:
                found.append(Pooled(plan.incarnation, plan.step, index, vector.astype("<f4").tobytes()))
    end = end_ids[0] if end_ids else 0
    ids = [-1 if error else end for error in errors]
    return found, Drawn(ids, errors, frozenset(), {}, {})
