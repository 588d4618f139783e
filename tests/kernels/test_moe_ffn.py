"""Mixtures of experts on every op set: against float64, ties, and the law that a row's bits are its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.ops.native import library
from workers.ops.protocol import Expert

WIDTH, HIDDEN = 64, 32
CASES = [(4, 2, True), (8, 3, False), (16, 1, True), (5, 5, False), (64, 8, True)]  # experts, top_k, normalise


class Mixture:
    """Random experts in one or more formats, and their dense weights."""

    def __init__(
        self, bench: Any, ops: Any, count: int, kinds: tuple[str, ...] = ("F32",), width: int = WIDTH, hidden: int = HIDDEN
    ) -> None:
        self.bench, self.ops, self.count, self.width = bench, ops, count, width
        self.experts, self.dense = [], []
        for index in range(count):
            kind = kinds[index % len(kinds)]
            gate, up = (bench.random_weights(kind, hidden, width, 3 * index + side) for side in (0, 1))
            down = bench.random_weights(kind, width, hidden, 3 * index + 2)
            self.experts.append(Expert(ops.matrix([gate[0], up[0]]), ops.matrix([down[0]])))
            self.dense.append([part[1].astype(np.float64) for part in (gate, up, down)])

    def run(self, x: NDArray[np.float32], scores: NDArray[np.float32], top_k: int, normalise: bool) -> NDArray[np.float32]:
        """The scores come in as a linear of the rows would give them: rows are looked up in a table of both."""
        table = np.concatenate([x, scores], axis=1)
        picks = [np.eye(table.shape[1], dtype=np.float32)[part] for part in (slice(0, self.width), slice(self.width, None))]
        take_x, take_scores = (self.ops.matrix([self.bench.floats(part)]) for part in picks)

        def body(step: Any, rows: Any) -> Any:
            return step.moe_ffn(step.linear(rows, take_x), step.linear(rows, take_scores), self.experts, top_k, normalise)

        result: NDArray[np.float32] = self.bench.rows(self.ops, table, body)
        return result

    def exact(self, x: NDArray[np.float32], scores: NDArray[np.float32], top_k: int, normalise: bool) -> NDArray[np.float64]:
        out = np.zeros(x.shape)
        for row, logits in enumerate(scores.astype(np.float64)):
            weights = np.exp(logits - logits.max())
            weights /= weights.sum()
            chosen = sorted(range(self.count), key=lambda expert: (-logits[expert], expert))[:top_k]
            total = weights[chosen].sum() if normalise else 1.0
            for expert in chosen:
                gate, up, down = self.dense[expert]
                hidden = x[row] @ gate.T
                out[row] += weights[expert] / total * (hidden / (1 + np.exp(-hidden)) * (x[row] @ up.T)) @ down.T
        return out


def case(rows: int, count: int, seed: int = 0, width: int = WIDTH) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return random.standard_normal((rows, width), dtype=np.float32), random.standard_normal((rows, count), dtype=np.float32)


@pytest.mark.parametrize("count,top_k,normalise", CASES)
def test_close_to_float64(bench: Any, implementation: str, count: int, top_k: int, normalise: bool) -> None:
    """Every output within float32's error of the formula."""
    mixture, (x, scores) = Mixture(bench, bench.ops(implementation), count), case(37, count)
    got, expected = mixture.run(x, scores, top_k, normalise), mixture.exact(x, scores, top_k, normalise)
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kinds", [("F32",), ("Q4_0", "Q8_0"), ("Q4_1", "F16")], ids=str)
def test_a_rows_bits_are_its_own(bench: Any, implementation: str, kinds: tuple[str, ...]) -> None:
    """Alone and in any company, in any order, on 1 .. 3 threads; experts of several formats side by side."""
    x, scores = case(41, 6, 1)
    mixture = Mixture(bench, bench.ops(implementation), 6, kinds)
    whole = mixture.run(x, scores, 2, True)
    order = np.random.default_rng(2).permutation(41)
    assert mixture.run(x[order], scores[order], 2, True).tobytes() == whole[order].tobytes()
    for row in (0, 7, 40):
        assert mixture.run(x[row : row + 1], scores[row : row + 1], 2, True).tobytes() == whole[row].tobytes()
    for threads in (1, 3):
        other = Mixture(bench, bench.ops(implementation, threads, direct=threads == 1), 6, kinds)
        assert other.run(x, scores, 2, True).tobytes() == whole.tobytes()


def test_instruction_sets_give_the_same_bits(bench: Any, isa: str) -> None:
    """Against the portable one, in quantised and in float formats."""
    x, scores = case(23, 6, 3)
    for kinds in (("F32",), ("Q4_0", "Q8_0", "BF16")):
        got, expected = (Mixture(bench, bench.ops(name), 6, kinds).run(x, scores, 3, False) for name in (isa, "portable"))
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", sorted(library.QUANTISED_TYPES))
def test_every_quantised_format(bench: Any, isa: str, kind: str) -> None:
    """Beside a float one, within what 16-bit activations cost."""
    (x, scores), mixture = case(9, 4, 5, 256), Mixture(bench, bench.ops(isa), 4, (kind, "F32"), 256, 256)
    got, expected = mixture.run(x, scores, 2, True), mixture.exact(x, scores, 2, True)
    assert np.abs(got - expected).max() < 1e-3 * np.abs(expected).max()


def test_ties_go_to_the_lowest_expert(bench: Any, implementation: str) -> None:
    """Equal scores: the same as if the lower experts scored a little more."""
    mixture, (x, _) = Mixture(bench, bench.ops(implementation), 6), case(5, 6)
    scores = np.zeros((5, 6), np.float32)
    expected = mixture.exact(x, scores, 2, True)
    assert np.abs(mixture.run(x, scores, 2, True) - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_broken_row_is_its_own(bench: Any, implementation: str) -> None:
    """A NaN in a row or in one of its scores shows in that row alone, chosen or not."""
    mixture, (x, scores) = Mixture(bench, bench.ops(implementation), 6), case(12, 6)
    sound = mixture.run(x, scores, 2, True)
    x[3, 5] = np.nan
    for expert in range(6):
        scores[4 + expert, expert] = np.nan
    with np.errstate(invalid="ignore"):
        got = mixture.run(x, scores, 2, True)
    assert not np.isfinite(got[3:10]).all(axis=-1).any()
    assert got[:3].tobytes() == sound[:3].tobytes() and got[10:].tobytes() == sound[10:].tobytes()
