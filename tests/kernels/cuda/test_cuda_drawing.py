"""Argmax and keyed draws: their definitions, ties, broken rows, and rows that do not know of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels_cupy.argmax import reference as argmax_reference
from kernels_cupy.argmax.launcher import CHUNK, argmax
from kernels_cupy.checks import KernelArgumentError
from kernels_cupy.keyed_sampling import reference
from kernels_cupy.keyed_sampling.launcher import Rules, keyed_sample
from workers.ops.protocol import SampleRows
from workers.ops.sampling import sample

INF, NAN = float("inf"), float("nan")


def hostile_rows(random: np.random.Generator, vocab: int) -> np.ndarray[Any, Any]:
    rows = random.standard_normal((9, vocab)).astype(np.float32)
    rows[0] = random.integers(0, 3, vocab)  # ties everywhere
    rows[1] = -INF
    rows[1, vocab // 2] = -3.0
    rows[2, vocab - 1] = NAN
    rows[3, 0] = np.float32(np.uint32(0xFFC00001).view(np.float32))  # a negative NaN
    rows[4] = 0.0
    rows[4, ::2] = -0.0  # -0 and 0 are equal: id 0
    rows[5] = -INF
    rows[6, vocab // 3] = INF
    rows[7] = -np.abs(rows[7]) - 1  # all negative
    return rows


@pytest.mark.parametrize("vocab", [1, 3, 700, CHUNK + 5])
def test_argmax(device: Any, place: Any, random: np.random.Generator, vocab: int) -> None:
    """The first of the highest, an error word for a row that is broken, and nothing read past the row or of its padding."""
    rows = hostile_rows(random, max(vocab, 3))[:, :vocab]
    padded = np.full((len(rows), vocab + 3), 1e30, np.float32)
    padded[:, :vocab] = rows
    ids, values, errors = argmax(device, place(torch.from_numpy(padded))[:, :vocab])
    expected_ids, expected_errors = argmax_reference.argmax(rows)
    assert ids.tolist() == expected_ids.tolist()
    assert errors.tolist() == expected_errors.tolist()
    sound = expected_errors == 0
    assert values.cpu().numpy()[sound].tolist() == rows.max(axis=1)[sound].tolist()


def rules_of(place: Any, rows: SampleRows) -> Rules:
    with np.errstate(divide="ignore"):
        log_min_p = np.log(np.asarray(rows.min_p, np.float64)).astype(np.float32)
    columns = (rows.temperature, rows.top_k, rows.top_p, log_min_p, rows.seed.view(np.int64), rows.position)
    return Rules(*(place(torch.from_numpy(np.array(column))) for column in columns))


def sample_rows(count: int, **changes: Any) -> SampleRows:
    columns: dict[str, Any] = {
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 2**63 + 5,
        "position": 9,
    } | changes
    types = {"temperature": "f4", "top_k": "i4", "top_p": "f4", "min_p": "f4", "seed": "u8", "position": "i4"}
    return SampleRows(**{name: np.resize(np.array(value, types[name]), count) for name, value in columns.items()})


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 1e-38},
    {"top_k": [1, 2, 5, 300, 5000]},
    {"top_p": [0.01, 0.5, 0.9, 0.9999999]},
    {"min_p": [0.01, 0.3, 1.0]},
    {"top_k": [3, 40, 200], "top_p": [0.4, 0.8], "min_p": [0.0, 0.02], "temperature": [0.3, 1.0, 7.0]},
]


@pytest.mark.parametrize("rules", RULES)
def test_draws_are_the_definitions(device: Any, place: Any, random: np.random.Generator, rules: dict[str, Any]) -> None:
    """The kernel draws what workers/ops/sampling.py draws, of random rows, rows of ties and one with masked tokens."""
    logits = (random.standard_normal((10, 700)) * 3).astype(np.float32)
    logits[1] = random.integers(-2, 3, 700)
    logits[2, ::2] = -INF
    logits[3] = 1.5
    rows = sample_rows(10, seed=random.integers(0, 2**64, 10, dtype=np.uint64), position=random.integers(0, 9999, 10), **rules)
    ids, errors = keyed_sample(device, place(torch.from_numpy(logits)), rules_of(place, rows))
    assert ids.tolist() == sample(logits, rows)[0].tolist()
    assert errors.tolist() == [0] * 10


def test_filters_keep_what_they_say(device: Any, place: Any, random: np.random.Generator) -> None:
    """Over many positions every token that may be drawn is, and no other."""
    logits = np.repeat(random.standard_normal((1, 60)).astype(np.float32), 400, axis=0)
    logits[:, 30:40] = logits[0, 29]  # ties at what will be the border
    rows = sample_rows(400, temperature=3.0, top_k=25, top_p=0.7, position=np.arange(400))
    ids, _ = keyed_sample(device, place(torch.from_numpy(logits)), rules_of(place, rows))
    wanted = reference.allowed(logits[0], 3.0, 25, float(np.float32(0.7)), -INF)
    assert set(ids.tolist()) == set(wanted.tolist())


def test_broken_rows_are_their_own_trouble(device: Any, place: Any, random: np.random.Generator) -> None:
    """A row that cannot be drawn from gets id -1 and its word; its neighbours draw what they draw alone."""
    logits = hostile_rows(random, 700)
    rows = sample_rows(len(logits), top_k=40, top_p=0.9)
    ids, errors = keyed_sample(device, place(torch.from_numpy(logits)), rules_of(place, rows))
    assert errors.tolist() == argmax_reference.argmax(logits)[1].tolist()
    assert [id < 0 for id in ids.tolist()] == [error != 0 for error in errors.tolist()]
    for index in range(len(logits)):
        alone, _ = keyed_sample(
            device, place(torch.from_numpy(logits[index : index + 1])), rules_of(place, sample_rows(1, top_k=40, top_p=0.9))
        )
        assert alone.tolist() == [ids.tolist()[index]]


def test_infinite_noise_wins(device: Any, place: Any) -> None:
    """A token whose uniform rounds to 1 has infinite noise: it is drawn, unless it is masked."""
    seed, position, vocab = next(
        (seed, position, 4096)
        for seed in range(4)
        for position in range(4000)
        if np.isinf(reference.noise(seed, position, 4096)).any()
    )
    lucky = int(np.isinf(reference.noise(seed, position, vocab)).argmax())
    logits = np.full((2, vocab), 5.0, np.float32)
    logits[0, lucky] = -50.0
    logits[1, lucky] = -INF
    ids, _ = keyed_sample(device, place(torch.from_numpy(logits)), rules_of(place, sample_rows(2, seed=seed, position=position)))
    assert ids.tolist()[0] == lucky != ids.tolist()[1]


def test_wrong_arguments_are_refused(device: Any) -> None:
    """Types and shapes are checked before anything is launched."""
    good = torch.zeros(2, 5)
    for logits in (good.double(), good.T, good[0]):
        with pytest.raises(KernelArgumentError):
            argmax(device, logits)
    columns = [torch.zeros(2) for _ in range(6)]
    with pytest.raises(KernelArgumentError, match="top_k is torch"):
        keyed_sample(device, good, Rules(*columns))
