"""Recurrent layers on the native ops: close to the NumPy reference, and the same bits in any company, cut, slot and thread count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.inputs import StepInputs
from workers.ops.protocol import Ops, RecurrentShape, Value
from workers.ops.reference import ReferenceOps

Float32 = NDArray[np.float32]

SHAPES = [
    RecurrentShape(layers=2, key_heads=2, value_heads=4, key_dim=16, value_dim=32, kernel=4),
    RecurrentShape(layers=2, key_heads=2, value_heads=4, key_dim=16, value_dim=32, kernel=4, tiled=True),
    RecurrentShape(layers=1, key_heads=3, value_heads=3, key_dim=5, value_dim=18, kernel=2),
    RecurrentShape(layers=1, key_heads=1, value_heads=5, key_dim=37, value_dim=7, kernel=3),
]
ROWS = 60


class Layer:
    """One recurrent layer on random weights: convolution, gates, delta rule, gated norm, over rows that are given."""

    def __init__(self, ops: Any, bench: Any, shape: RecurrentShape, layer: int = 0, seed: int = 0) -> None:
        random = np.random.default_rng(seed)

        def vector(*size: int, scale: float = 1.0, offset: float = 0.0) -> Any:
            values = (offset + scale * random.standard_normal(size)).astype(np.float32)
            return ops.vector(bench.raw("vector", "F32", (values.size,), values))

        self.ops, self.shape, self.layer = ops, shape, layer
        self.taps = vector(shape.kernel, shape.channels, scale=0.5)
        self.decay = vector(shape.value_heads, scale=0.2, offset=-0.5)
        self.dt_bias = vector(shape.value_heads)
        self.norm = vector(shape.value_dim, scale=0.1, offset=1.0)
        rows = random.standard_normal((ROWS, shape.channels + shape.value_heads * (2 + shape.value_dim)), dtype=np.float32)
        self.tables = self._tables(bench, rows)
        ops.allocate_state(shape, 6)
        ops.allocate_kv(1, 1, 1, 16)

    def _tables(self, bench: Any, rows: Float32) -> list[Any]:
        """Matrices whose rows are the layer's inputs: mixed queries, keys and values; b and a; the gate of the norm."""
        shape = self.shape
        parts = np.split(rows, [shape.channels, shape.channels + 2 * shape.value_heads], axis=-1)
        return [self.ops.matrix([bench.floats(np.ascontiguousarray(part))]) for part in parts]

    def feed(self, bench: Any, qkv: Float32) -> None:
        """Other mixed queries, keys and values."""
        self.tables[0] = self.ops.matrix([bench.floats(qkv)])

    def forward(self, ops: Ops) -> Value:
        mixed, ba, z = (ops.embed(table) for table in self.tables)
        gates = ops.gdn_gating(ba, self.decay, self.dt_bias)
        out = ops.recurrent_update(ops.causal_conv_update(mixed, self.taps, self.layer), gates, self.layer)
        return ops.gather_logit_rows(ops.gated_rms_norm(out, z, self.norm, 1e-6))

    def run(self, inputs: StepInputs) -> Float32:
        out: Float32 = self.ops.run(self.forward, inputs)
        return out.copy()


def step(bench: Any, parts: Sequence[tuple[int, int, int]]) -> StepInputs:
    """`parts`: (slot, first position, rows); a row's values are those of its position."""
    starts = [(start, count) for _, start, count in parts]
    inputs = bench.inputs(sum(count for _, count in starts), starts, width=8)
    return replace(
        inputs,
        token_ids=inputs.positions.copy(),
        state_slots=np.array([slot for slot, _, _ in parts], np.int32),
        block_tables=np.zeros_like(inputs.block_tables),
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_the_reference(bench: Any, isa: str, shape: RecurrentShape) -> None:
    """A whole layer over 60 tokens of two sequences, within float32's rounding."""
    inputs = step(bench, [(1, 0, 40), (0, 0, 20)])
    got = Layer(bench.ops(isa), bench, shape).run(inputs)
    expected = Layer(ReferenceOps(threads=1), bench, shape).run(inputs)
    assert np.abs(got - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ops", ["native", "reference"])
def test_cuts_company_slots_and_threads_do_not_change_bits(bench: Any, isa: str, shape: RecurrentShape, ops: str) -> None:
    """A sequence whole and alone, and cut up beside others, in another slot and layer, on 1 .. 4 threads."""
    layer = shape.layers - 1
    if ops == "reference":
        whole = Layer(ReferenceOps(1), bench, shape).run(step(bench, [(0, 0, 45)])).tobytes()
        layers = [Layer(ReferenceOps(1), bench, shape, layer)]
    else:
        whole = Layer(bench.ops("portable", 1), bench, shape).run(step(bench, [(0, 0, 45)])).tobytes()
        layers = [
            Layer(bench.ops(isa, threads, direct), bench, shape, layer) for threads in (1, 2, 4) for direct in (False, True)
        ]
    for cut in layers:
        at, others, rows = 0, 0, []
        for count in (1, 2, 17, 1, 1, 16, 7):
            got = cut.run(step(bench, [(5, others, 3), (2, at, count), (0, others, 1)]))
            rows.append(got[3 : 3 + count])
            at, others = at + count, others + 3
        assert np.concatenate(rows).tobytes() == whole


def test_a_copied_state_goes_on_alike(bench: Any, isa: str) -> None:
    """Saved at position 20, the sequence that goes on from the copy is the one that went on by itself; a slot that is begun anew
    starts from zeros."""
    for ops in (bench.ops(isa), ReferenceOps(1)):
        layer = Layer(ops, bench, SHAPES[0])
        first = layer.run(step(bench, [(1, 0, 20)]))
        ops.copy_state(1, 4)
        rest = layer.run(step(bench, [(1, 20, 9)]))
        assert layer.run(step(bench, [(4, 20, 9)])).tobytes() == rest.tobytes()
        assert layer.run(step(bench, [(4, 0, 20)])).tobytes() == first.tobytes()


@pytest.mark.parametrize("kind", ["one token for ever", "two in turn", "keys nearly alike", "keys against each other"])
def test_correlated_keys(bench: Any, isa: str, kind: str) -> None:
    """Repetitive text makes keys alike: the state stays finite, and equal to the reference's."""
    shape, random = SHAPES[0], np.random.default_rng(3)
    base = random.standard_normal((2, shape.channels)).astype(np.float32)
    rows = {
        "one token for ever": np.repeat(base[:1], ROWS, axis=0),
        "two in turn": np.tile(base, (ROWS // 2, 1)),
        "keys nearly alike": base[:1] + 1e-4 * random.standard_normal((ROWS, shape.channels)),
        "keys against each other": np.tile([[1.0], [-1.0]], (ROWS // 2, 1)) * base[:1],
    }[kind].astype(np.float32)
    outs = []
    for ops in (bench.ops(isa), ReferenceOps(1)):
        layer = Layer(ops, bench, shape)
        layer.feed(bench, rows)
        layer.dt_bias = layer.ops.vector(bench.raw("v", "F32", (4,), np.full(4, -20, np.float32)))  # nothing is forgotten
        layer.run(step(bench, [(0, 0, ROWS)]))
        for _ in range(40):  # the state goes on over 2,400 more tokens
            again = replace(step(bench, [(0, 1, ROWS - 1)]))
            outs.append(layer.run(again))
    got, expected = outs[39], outs[79]
    assert np.isfinite(got).all() and np.abs(got - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("value", [-200.0, -30.0, -1.0, 0.0, 1e-6, 3.0, 30.0, 200.0])
def test_gates(bench: Any, isa: str, value: float) -> None:
    """beta and g against float64, at the ends of their range too."""
    ops = bench.ops(isa)
    rows = np.array([[value, 0.5, value, -0.25]], np.float32)
    decay, bias = np.array([-2.0, -0.1], np.float32), np.array([0.0, 0.125], np.float32)
    vectors = [ops.vector(bench.raw("v", "F32", (2,), values)) for values in (decay, bias)]
    got = bench.rows(ops, rows, lambda one, x: one.gdn_gating(x, *vectors))[0].astype(np.float64)
    b, a = np.split(rows[0].astype(np.float64), 2)
    expected = np.concatenate([1 / (1 + np.exp(-b)), decay * np.logaddexp(0, a + bias)])
    assert np.allclose(got, expected, rtol=3e-7, atol=1e-37)


def test_sigmoid_gates_rows_and_columns(bench: Any, isa: str) -> None:
    """A gate as wide as the rows, and one of a single column."""
    ops, random = bench.ops(isa), np.random.default_rng(1)
    rows, wide, single = (random.standard_normal((9, width)).astype(np.float32) for width in (37, 37, 1))
    for gate in (wide, single):
        table = ops.matrix([bench.floats(gate)])
        got = bench.rows(ops, rows, lambda one, x, table=table: one.sigmoid_mul(x, one.embed(table)))
        assert np.allclose(got, rows / (1 + np.exp(-gate)), rtol=1e-6, atol=1e-7)


def test_a_broken_row_spoils_its_own_sequence_alone(bench: Any, isa: str) -> None:
    """A NaN stays in its sequence, from its token on."""
    ops, shape = bench.ops(isa), SHAPES[0]
    layer = Layer(ops, bench, shape)
    expected = layer.run(step(bench, [(0, 0, 30)]))
    rows = np.random.default_rng(0).standard_normal((ROWS, shape.channels + 4 * 34), dtype=np.float32)
    rows = rows[:, : shape.channels].copy()
    layer.run(step(bench, [(0, 0, 1)]))
    rows[33] = np.nan
    broken = Layer(ops, bench, shape)
    broken.tables[0] = ops.matrix([bench.floats(rows)])
    clean = broken.run(step(bench, [(0, 0, 30)]))
    got = broken.run(step(bench, [(0, 30, 10), (1, 0, 30)]))
    assert np.isfinite(got[:3]).all() and np.isnan(got[3:10]).all()
    assert got[10:].tobytes() == clean.tobytes() and clean.shape == expected.shape


def test_wrong_slots_are_refused(bench: Any, isa: str) -> None:
    """Nothing that addresses memory is believed."""
    layer = Layer(bench.ops(isa), bench, SHAPES[0])
    good = step(bench, [(0, 0, 3), (1, 0, 3)])
    for slots, message in {(0, 6): "does not exist", (-1, 0): "does not exist", (2, 2): "have one state slot"}.items():
        with pytest.raises(ValueError, match=message):
            layer.run(replace(good, state_slots=np.array(slots, np.int32)))
    with pytest.raises(ValueError, match="have no state slots"):
        layer.run(replace(good, state_slots=np.zeros(0, np.int32)))
    layer.layer = 2
    layer.ops._programs.clear()
    with pytest.raises(ValueError, match="another shape"):
        layer.run(good)
