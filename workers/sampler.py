"""From a step's logits to its tokens: digests, rules, draw, log-probabilities; one row's failure is that row's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ipc.messages import TokenLogprobs
from workers import logits_rules
from workers.ops.protocol import Float32, Ops, SampleRows
from workers.seats import Seat


@dataclass(frozen=True)
class Drawn:
    """Entry i belongs to row i; -1 and a word in `errors` where a row could not be drawn."""

    ids: list[int]
    errors: list[str]
    logprobs: dict[int, TokenLogprobs]
    hashes: dict[int, int]


def draw(logits: Float32, seats: list[Seat], ops: Ops, end_ids: list[int]) -> Drawn:
    """One token for each seat from its row of (R, V) logits, which are changed in place by the rules."""
    hashes = {index: digest(logits[index]) for index, seat in enumerate(seats) if seat.params.hash_logits}
    for row, seat in zip(logits, seats, strict=True):
        prompt, output = seat.ids[: seat.prompt_len], seat.ids[seat.prompt_len :]
        if not logits_rules.is_neutral(seat.params, len(output)):
            logits_rules.apply(row, seat.params, prompt, output, end_ids)
    ids, errors = ops.sample(logits, _rows(seats))
    logprobs = {
        index: log_probabilities(logits[index], int(ids[index]), seat.params.logprobs)
        for index, seat in enumerate(seats)
        if seat.params.logprobs >= 0 and not errors[index]
    }
    return Drawn(ids.tolist(), errors, logprobs, hashes)


def digest(row: Float32) -> int:
    """63 bits that stand for a row of logits (V), bit for bit."""
    raw = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
    return int.from_bytes(raw, "little") >> 1


def log_probabilities(row: Float32, token: int, best: int) -> TokenLogprobs:
    """Natural-log softmax at `token` and at the `best` highest ids, equal ones by lowest id."""
    wide = row.astype(np.float64)
    top = wide.max()
    log_sum = top + np.log(np.exp(wide - top).sum())
    ids = np.argsort(-wide, kind="stable")[:best] if best else np.empty(0, np.int64)
    # msgpack and JSON carry no infinities: an impossible token gets the lowest float32
    values = np.maximum(wide - log_sum, np.finfo(np.float32).min)
    return TokenLogprobs(float(values[token]), ids.tolist(), values[ids].tolist())


def _rows(seats: list[Seat]) -> SampleRows:
    params = [seat.params for seat in seats]
    return SampleRows(
        temperature=np.array([item.temperature for item in params], np.float32),
        top_k=np.array([item.top_k for item in params], np.int32),
        top_p=np.array([item.top_p for item in params], np.float32),
        min_p=np.array([item.min_p for item in params], np.float32),
        seed=np.array([seat.seed for seat in seats], np.uint64),
        position=np.array([len(seat.ids) for seat in seats], np.int32),
    )
