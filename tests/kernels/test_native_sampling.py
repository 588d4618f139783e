"""Drawing tokens with the native ops: against the definition, on known distributions, ties, and rows that cannot be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workers.ops import sampling
from workers.ops.native import library
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import SampleRows


def rules(rows: int, **changes: Any) -> SampleRows:
    defaults: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
        "position": np.arange(rows),
    }
    kinds = {
        "temperature": np.float32,
        "top_k": np.int32,
        "top_p": np.float32,
        "min_p": np.float32,
        "seed": np.uint64,
        "position": np.int32,
    }
    columns = {
        name: np.broadcast_to(np.asarray(changes.get(name, value), kinds[name]), (rows,)) for name, value in defaults.items()
    }
    return SampleRows(**columns)


def logits_of(rows: int, vocab: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * 3).astype(np.float32)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 1e-38},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 300},
    {"top_k": 100000},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.02, "temperature": 1.3},
]


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [5, 16, 257, 3000])
def test_follows_the_definition(bench: Any, isa: str, changes: dict[str, Any], vocab: int) -> None:
    """The same ids as workers/ops/sampling.py, whose log and exp differ only in the last bits."""
    logits = logits_of(60, vocab)
    rows = rules(60, **changes)
    got, errors = bench.ops(isa).sample(logits, rows)
    expected, _ = sampling.sample(logits, rows)
    assert np.array_equal(got, expected) and errors == [""] * 60


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_same_ids_on_every_instruction_set(bench: Any, isa: str, changes: dict[str, Any]) -> None:
    """Also for rows in another order, on other threads, and with a uniform row, where a last bit would decide."""
    logits = np.concatenate([logits_of(40, 1000), np.zeros((8, 1000), np.float32)])
    rows = rules(48, **changes)
    expected, _ = bench.ops("portable", 1).sample(logits, rows)
    assert np.array_equal(bench.ops(isa, 3).sample(logits, rows)[0], expected)
    order = np.random.default_rng(0).permutation(48)
    shuffled = SampleRows(*(getattr(rows, name)[order] for name in SampleRows.__dataclass_fields__))
    assert np.array_equal(bench.ops(isa).sample(logits[order], shuffled)[0], expected[order])


@pytest.mark.parametrize(
    "changes,support",
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_p": 0.6}, [0, 1, 2]),
        ({"min_p": 0.6}, [0, 1]),
        ({"top_k": 4, "top_p": 0.5}, [0, 1]),
    ],
    ids=str,
)
def test_distribution(bench: Any, isa: str, changes: dict[str, Any], support: list[int]) -> None:
    """Chi-square of 20,000 draws against the filtered softmax (limit: 1 in a million for 7 degrees of freedom)."""
    chances = np.array([0.3, 0.2, 0.15, 0.12, 0.1, 0.07, 0.04, 0.02])
    draws = 20000
    logits = np.broadcast_to(np.log(chances).astype(np.float32), (draws, 8))
    ids, _ = bench.ops(isa).sample(logits, rules(draws, seed=99, **changes))
    expected = np.zeros(8)
    expected[support] = chances[support] ** (1 / changes.get("temperature", 1.0))
    expected *= draws / expected.sum()
    counts = np.bincount(ids, minlength=8)
    assert not counts[expected == 0].any()
    kept = expected > 0
    assert ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum() < 41


def test_greedy_ties_go_to_the_lowest_id(bench: Any, isa: str) -> None:
    """Wherever the equal maxima are."""
    logits = logits_of(50, 333)
    random = np.random.default_rng(3)
    places = [np.sort(random.choice(333, 3, replace=False)) for _ in range(50)]
    for row, place in zip(logits, places, strict=True):
        row[place] = 50
    ids, _ = bench.ops(isa).sample(logits, rules(50, temperature=0.0))
    assert ids.tolist() == [int(place[0]) for place in places]


def test_filter_ties_go_to_the_lowest_ids(bench: Any, isa: str) -> None:
    """Of equal logits, top_k and top_p keep the first ones."""
    logits = np.zeros((400, 64), np.float32)
    ids, _ = bench.ops(isa).sample(logits, rules(400, top_k=3))
    assert set(ids.tolist()) == {0, 1, 2}
    ids, _ = bench.ops(isa).sample(logits, rules(400, top_p=0.1))  # 6.4 of 64: the first 7
    assert set(ids.tolist()) == set(range(7))


def infinite_noise() -> tuple[int, int]:
    """A seed and a token id whose uniform rounds to 1."""
    for seed in range(400):
        noise = sampling.noise(seed, 5, 200000)
        if np.isinf(noise).any():
            return seed, int(np.isinf(noise).argmax())
    raise AssertionError("no infinite noise found")


def test_infinite_noise_wins(bench: Any, isa: str) -> None:
    """As in the definition: however low the token's logit is, unless it is masked."""
    seed, token = infinite_noise()
    logits = np.zeros((2, 200000), np.float32)
    logits[0, token], logits[1, token] = -1000, -np.inf
    rows = rules(2, seed=seed, position=5)
    ids, _ = bench.ops(isa).sample(logits, rows)
    assert ids[0] == token and ids[1] != token


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_broken_rows_are_reported(bench: Any, isa: str, temperature: float) -> None:
    """A NaN at any lane, +infinity, or nothing finite: id -1 and a reason with counts, and the other rows are drawn."""
    logits = logits_of(36, 100)
    for row in range(32):
        logits[row, row + 3] = np.nan
    logits[32, 99] = np.inf
    logits[33] = -np.inf
    logits[34, ::2] = -np.inf
    ids, errors = bench.ops(isa).sample(logits, rules(36, temperature=temperature))
    assert (ids[:34] == -1).all() and (ids[34:] >= 0).all() and ids[34] % 2 == 1
    assert "1 NaN" in errors[0] and "1 +inf" in errors[32] and "100 -inf" in errors[33] and errors[34:] == ["", ""]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    vocab=st.integers(1, 90),
    temperature=st.floats(0.0625, 5, width=32),
    top_k=st.integers(0, 100),
    top_p=st.floats(0.015625, 1, width=32),
    min_p=st.floats(0, 1, width=32),
)
def test_any_rule_agrees(seed: int, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """All instruction sets draw the same; each draw lies in the definition's filtered set."""
    rows = rules(4, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    logits = logits_of(4, vocab, seed % 1000)
    drawn = [_engine(isa).sample(logits, rows)[0] for isa in library.instruction_sets()]
    assert all(np.array_equal(ids, drawn[0]) for ids in drawn) and (drawn[0] >= 0).all()
    for row, token in zip(logits, drawn[0], strict=True):
        better = row > row[token]
        assert not top_k or better.sum() < top_k


_ENGINES: dict[str, NativeOps] = {}


def _engine(isa: str) -> NativeOps:
    if isa not in _ENGINES:
        _ENGINES[isa] = NativeOps(1, 8, isa=isa)
    return _ENGINES[isa]
