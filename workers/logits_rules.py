"""The rules between logits and draw. Each is a pure function of (params, ids so far), so a replay after a crash repeats it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipc.messages import SamplingParams
from workers.ops.protocol import Float32

Mask = NDArray[np.bool_]  # (V)


def is_neutral(params: SamplingParams, num_output: int) -> bool:
    """Whether `apply` would change nothing."""
    return (
        num_output >= params.min_tokens
        and not params.grammar
        and params.thinking_budget < 0
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )


def apply(
    row: Float32, params: SamplingParams, prompt: list[int], output: list[int], end_ids: list[int], allowed: Mask | None = None
) -> None:
    """Changes one row of logits (V) in place.

    Repetition penalty (Keskar et al. 2019) over prompt and output; presence and frequency penalties over the output, as OpenAI
    defines them; bias is added; only what the grammar allows is drawn; reasoning over its budget is closed; no end token is drawn
    before `min_tokens`, unless nothing else may be.
    """
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.array(prompt + output, np.int64))
        values = row[seen]
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if output and (params.presence_penalty != 0.0 or params.frequency_penalty != 0.0):
        ids, counts = np.unique(np.array(output, np.int64), return_counts=True)
        row[ids] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * counts.astype(np.float32)
    if params.logit_bias:
        row[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), np.float32)
    if allowed is not None:
        row[~allowed] = -np.inf
    if len(output) < params.min_tokens:
        _without(row, [*params.stop_token_ids, *([] if params.ignore_eos else end_ids)])
    closing = closing_token(params, output)
    if closing is not None and row[closing] > -np.inf:
        kept = row[closing]
        row[:] = -np.inf
        row[closing] = kept


def _without(row: Float32, ids: list[int]) -> None:
    """Takes tokens out, unless nothing would be left."""
    kept = row[ids]
    row[ids] = -np.inf
    if ids and row.max() == -np.inf:
        row[ids] = kept


def closing_token(params: SamplingParams, output: list[int]) -> int | None:
    """The token that has to come because reasoning has used up its budget; None while it has not, and after it is closed."""
    if params.thinking_budget < 0 or not params.thinking_close:
        return None
    start, close = len(params.thinking_open), params.thinking_close
    if params.thinking_inside:
        start = 0
    elif output[:start] != params.thinking_open:
        return None
    thoughts = output[start:]
    if len(thoughts) < params.thinking_budget or _holds(thoughts, close):
        return None
    begun = max(length for length in range(len(close)) if length == 0 or thoughts[-length:] == close[:length])
    return close[begun]


def _holds(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids) - len(part) + 1))
