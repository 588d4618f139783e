"""Keyed sampling: the draw's definition, each parameter's distribution, and rows that cannot be drawn from."""

from __future__ import annotations

import numpy as np
import pytest

from ipc.messages import SamplingParams
from workers import logits_rules
from workers.ops import sampling
from workers.ops.protocol import SampleRows
from workers.sampler import log_probabilities

LOGITS = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], np.float32))
DRAWS = 4000


def rows(count: int, **changes: float) -> SampleRows:
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **changes}
    return SampleRows(
        temperature=np.full(count, values["temperature"], np.float32),
        top_k=np.full(count, values["top_k"], np.int32),
        top_p=np.full(count, values["top_p"], np.float32),
        min_p=np.full(count, values["min_p"], np.float32),
        seed=np.arange(count, dtype=np.uint64) * np.uint64(7919) + np.uint64(2**40),
        position=np.arange(count, dtype=np.int32) % 97,
    )


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    held = expected > 0
    assert counts[~held].sum() == 0, "a token was drawn that cannot be"
    return float(((counts[held] - expected[held] * DRAWS) ** 2 / (expected[held] * DRAWS)).sum())


def normalised(weights: list[float]) -> np.ndarray:
    values = np.array(weights, np.float64)
    return values / values.sum()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]),
        ({"temperature": 0.5}, [0.16, 0.0625, 0.0225, 0.01, 0.0036, 0.0016]),
        ({"temperature": 2.0}, [0.4**0.5, 0.25**0.5, 0.15**0.5, 0.1**0.5, 0.06**0.5, 0.04**0.5]),
        ({"top_k": 3}, [0.4, 0.25, 0.15, 0, 0, 0]),
        ({"top_p": 0.7}, [0.4, 0.25, 0.15, 0, 0, 0]),
        ({"top_p": 0.3}, [1, 0, 0, 0, 0, 0]),
        ({"min_p": 0.2}, [0.4, 0.25, 0.15, 0.1, 0, 0]),
        ({"top_k": 2, "top_p": 0.99}, [0.4, 0.25, 0, 0, 0, 0]),
        ({"temperature": 0.0}, [1, 0, 0, 0, 0, 0]),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(changes, expected):
    """Chi-square of 4,000 draws over 5 degrees of freedom, at p = 1e-4."""
    ids, errors = sampling.sample(np.tile(LOGITS, (DRAWS, 1)), rows(DRAWS, **changes))
    assert not any(errors)
    assert chi_square(np.bincount(ids, minlength=6), normalised(expected)) < 25.7


def test_a_draw_depends_on_seed_position_and_id_alone():
    """The same row alone, at another place in a batch, and beside others: the same token."""
    batch = rows(64)
    together, _ = sampling.sample(np.tile(LOGITS, (64, 1)), batch)
    for index in (0, 13, 63):
        one = SampleRows(*(getattr(batch, name)[index : index + 1] for name in batch.__dataclass_fields__))
        assert sampling.sample(LOGITS[None], one)[0][0] == together[index]
    assert len(set(together.tolist())) > 1


def test_ties_go_to_the_lowest_id():
    """Greedy and filtered: equal logits, the first wins."""
    tied = np.array([[1, 3, 3, 2, 3]], np.float32)
    assert sampling.sample(tied, rows(1, temperature=0))[0][0] == 1
    assert sampling.sample(tied, rows(1, top_k=1))[0][0] == 1


def test_infinite_noise_wins():
    """A uniform that rounds to 1 has infinite noise: its token is drawn, whatever its logit."""
    vocab = 100_000
    for seed in range(2000):
        noise = sampling.noise(seed, 0, vocab)
        if np.isinf(noise).any():
            break
    else:
        pytest.fail("no seed below 2000 has infinite noise; the hash changed")
    logits = np.zeros((1, vocab), np.float32)
    winner = int(np.flatnonzero(np.isinf(noise))[0])
    logits[0, winner] = -50
    one = rows(1)
    one.seed[0], one.position[0] = seed, 0
    assert sampling.sample(logits, one)[0][0] == winner


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_row_is_reported_with_counts(value):
    """NaN or +inf in one row: that row's error says how many of what; the others are drawn."""
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 4] = value
    ids, errors = sampling.sample(logits, rows(3))
    assert ids[1] == -1 and ids[0] >= 0 and ids[2] >= 0
    assert ("1 NaN" if np.isnan(value) else "1 +inf") in errors[1] and "mean" in errors[1]
    ids, errors = sampling.sample(np.full((1, 4), -np.inf, np.float32), rows(1))
    assert ids[0] == -1 and "4 -inf" in errors[0] and "none finite" in errors[0]


def test_rules_do_what_their_definitions_say():
    """Penalties over prompt and output, bias added, no end before min_tokens."""
    base = np.array([2.0, -2.0, 1.0, 0.5, 3.0], np.float32)

    def after(prompt=(), output=(), **params):
        row = base.copy()
        logits_rules.apply(row, SamplingParams(max_tokens=9, **params), list(prompt), list(output), [4])
        return row.tolist()

    assert after(prompt=[0], output=[1], repetition_penalty=2.0) == [1.0, -4.0, 1.0, 0.5, 3.0]
    assert after(prompt=[0], output=[2, 2, 3], presence_penalty=0.5) == [2.0, -2.0, 0.5, 0.0, 3.0]
    assert after(output=[2, 2, 3], frequency_penalty=0.5) == [2.0, -2.0, 0.0, 0.0, 3.0]
    assert after(logit_bias={3: 4.0}) == [2.0, -2.0, 1.0, 4.5, 3.0]
    assert after(min_tokens=1, stop_token_ids=[0]) == [-np.inf, -2.0, 1.0, 0.5, -np.inf]
    assert after(min_tokens=1, ignore_eos=True) == base.tolist()
    assert after(output=[1], min_tokens=1) == base.tolist()


def test_log_probabilities_are_the_softmax():
    """Of the drawn token and the best, falling; an impossible token gets the lowest float32, not an infinity."""
    row = np.array([0.0, 1.0, -np.inf, 1.0], np.float32)
    result = log_probabilities(row, 2, 3)
    total = 1 + 2 * np.e
    assert result.ids == [1, 3, 0]
    assert np.allclose(result.logprobs, [np.log(np.e / total)] * 2 + [np.log(1 / total)])
    assert result.logprob == np.finfo(np.float32).min
