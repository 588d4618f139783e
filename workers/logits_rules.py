"""The rules between logits and draw. Each is a pure function of (params, ids so far), so a replay after a crash repeats it."""

from __future__ import annotations

import numpy as np

from ipc.messages import SamplingParams
from workers.ops.protocol import Float32


def is_neutral(params: SamplingParams, num_output: int) -> bool:
    """Whether `apply` would change nothing."""
    return (
        num_output >= params.min_tokens
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )


def apply(row: Float32, params: SamplingParams, prompt: list[int], output: list[int], end_ids: list[int]) -> None:
    """Changes one row of logits (V) in place.

    Repetition penalty (Keskar et al. 2019) over prompt and output; presence and frequency penalties over the output, as OpenAI
    defines them; bias is added; no end token is drawn before `min_tokens`.
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
    if len(output) < params.min_tokens:
        row[list(params.stop_token_ids)] = -np.inf
        if not params.ignore_eos:
            row[end_ids] = -np.inf
