"""From a step's logits to its tokens: digests, rules, draw, log-probabilities; one row's failure is that row's."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipc.messages import TokenLogprobs
from workers import logits_rules
from workers.grammar import GrammarError, Grammars
from workers.ops.protocol import Float32, Logits, Ops, SampleRows
from workers.seats import Seat

log = logging.getLogger("worker.sampler")


@dataclass(frozen=True)
class Drawn:
    """Entry i belongs to row i; -1 and a word in `errors` where a row could not be drawn: its numbers were wrong, or, where it is
    in `failed`, what its request asks for could not be done."""

    ids: list[int]
    errors: list[str]
    failed: frozenset[int]
    logprobs: dict[int, TokenLogprobs]
    hashes: dict[int, int]


def draw(logits: Logits, seats: list[Seat], ops: Ops, end_ids: list[int], grammars: Grammars) -> Drawn:
    """One token for each seat from its row of (R, V) logits, which are changed in place by the rules. Rows that no rule, digest or log
    probability asks for are not looked at: they may lie on a device."""
    hashes = {index: digest(logits[index]) for index, seat in enumerate(seats) if seat.params.hash_logits}
    failed: dict[int, str] = {}
    for index, seat in enumerate(seats):
        try:
            _apply_rules(logits, index, seat, end_ids, grammars)
        except GrammarError as error:
            failed[index] = str(error)
        except MemoryError:
            raise
        except Exception as error:  # a request's own trouble must not become its neighbours'
            log.exception("a sequence's rules failed")
            failed[index] = f"the request could not be done ({type(error).__name__}: {error})"
    for index in failed:
        logits[index] = np.nan  # so that nothing is drawn
    ids, errors = ops.sample(logits, _rows(seats))
    for index, reason in enumerate(errors):
        if reason and index not in failed:
            log.error("a row of logits cannot be drawn from: %s; %s", reason, describe(logits[index]))
    for index, reason in failed.items():
        errors[index] = reason
    logprobs = {
        index: log_probabilities(logits[index], int(ids[index]), seat.params.logprobs)
        for index, seat in enumerate(seats)
        if seat.params.logprobs >= 0 and not errors[index]
    }
    return Drawn(ids.tolist(), errors, frozenset(failed), logprobs, hashes)


def _apply_rules(logits: Logits, index: int, seat: Seat, end_ids: list[int], grammars: Grammars) -> None:
    params, prompt, output = seat.params, seat.ids[: seat.prompt_len], seat.ids[seat.prompt_len :]
    if logits_rules.is_neutral(params, len(output)):
        return
    allowed = None
    if params.grammar:
        seat.grammar = seat.grammar or grammars.start(params.grammar)
        allowed = grammars.allowed(seat.grammar, output)
    logits_rules.apply(logits[index], params, prompt, output, end_ids, allowed)


def describe(row: Float32) -> str:
    """What is wrong with a row of logits (V), for the log."""
    finite = row[np.isfinite(row)]
    spread = f"min {finite.min():g}, max {finite.max():g}, mean {finite.mean(dtype=np.float64):g}" if finite.size else "none"
    counts = (
        f"{np.isnan(row).sum()} nan, {np.isposinf(row).sum()} +inf, {np.isneginf(row).sum()} -inf, {(finite < 0).sum()} negative"
    )
    return f"{counts}, of {row.size}; finite: {spread}"


def digest(row: Float32) -> int:
    """63 bits that stand for a row of logits (V), bit for bit."""
    raw = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
    return int.from_bytes(raw, "little") >> 1


def log_probabilities(row: Float32, token: int, best: int) -> TokenLogprobs:
    """Natural-log softmax at `token` and at the `best` highest ids, equal ones by lowest id."""
    wide = row.astype(np.float64)
    top = wide.max()
    log_sum = top + np.log(np.exp(wide - top).sum())
    ids = _highest(wide, best)
    # msgpack and JSON carry no infinities: an impossible token gets the lowest float32
    values = np.maximum(wide - log_sum, np.finfo(np.float32).min)
    return TokenLogprobs(float(values[token]), ids.tolist(), values[ids].tolist())


def _highest(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The ids of the `count` highest values, highest first, equal ones by lowest id."""
    if count == 0:
        return np.empty(0, np.int64)
    count = min(count, values.size)
    ids = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return ids[np.argsort(-values[ids], kind="stable")[:count]]


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
