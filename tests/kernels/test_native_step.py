"""Whole steps of a tiny llama on the native ops: recorded or direct, in any company, the same bits; and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.ops.native import library
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops, Rope, Value
from workers.ops.reference import ReferenceOps

HEADS, KV_HEADS, HEAD_DIM, WIDTH, HIDDEN, VOCAB, LAYERS = 4, 2, 16, 64, 96, 70, 2


@dataclass
class TinyLlama:
    """Two layers of random weights in four formats; the second layer's last linear wants floats."""

    ops: Any
    bench: Any

    def __post_init__(self) -> None:
        def matrix(*parts: tuple[str, int, int, int]) -> Any:
            return self.ops.matrix([self.bench.random_weights(*part)[0] for part in parts])

        def vector(seed: int) -> Any:
            values = 1 + np.random.default_rng(seed).standard_normal(WIDTH).astype(np.float32) / 10
            return self.ops.vector(self.bench.raw("norm", "F32", (WIDTH,), values))

        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.table = matrix(("Q8_0", VOCAB, WIDTH, 1))
        self.layers = [
            (
                vector(seed),
                matrix(("Q4_1", q, WIDTH, seed), ("Q4_1", kv, WIDTH, seed + 1), ("Q8_0", kv, WIDTH, seed + 2)),
                matrix(("Q4_0", WIDTH, q, seed + 3)),
                vector(seed + 4),
                matrix(("Q4_1", HIDDEN, WIDTH, seed + 5), ("Q4_1", HIDDEN, WIDTH, seed + 6)),
                matrix(("Q4_0" if seed == 10 else "BF16", WIDTH, HIDDEN, seed + 7)),
            )
            for seed in range(10, 10 + 10 * LAYERS, 10)
        ]
        self.norm = vector(2)
        self.rope = Rope(1000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM), False)
        self.ops.allocate_kv(LAYERS, 64, KV_HEADS, HEAD_DIM)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.table)
        for index, (norm, qkv, output, ffn_norm, gate_up, down) in enumerate(self.layers):
            rows = ops.linear(ops.rms_norm(x, norm, 1e-5), qkv)
            q = ops.rope_kv_write(rows, index, HEADS, KV_HEADS, HEAD_DIM, self.rope)
            x = ops.add(x, ops.linear(ops.attention(q, index, HEADS, KV_HEADS, HEAD_DIM), output))
            x = ops.add(x, ops.linear(ops.silu_mul(ops.linear(ops.rms_norm(x, ffn_norm, 1e-5), gate_up)), down))
        return ops.linear(ops.rms_norm(ops.gather_logit_rows(x), self.norm, 1e-5), self.table)

    def run(self, inputs: Any) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self.ops.run(self.forward, inputs)
        return logits.copy()


def native(bench: Any, isa: str, **changes: Any) -> TinyLlama:
    options: dict[str, Any] = {"threads": 2, "max_step_tokens": 64, "isa": isa}
    return TinyLlama(NativeOps(**(options | changes)), bench)


def test_close_to_the_reference(bench: Any, isa: str) -> None:
    """Logits agree with the float32 reference to what 16-bit activations and the float16 that keys round to cost."""
    inputs = bench.inputs(40)
    got, expected = native(bench, isa).run(inputs), TinyLlama(ReferenceOps(threads=1), bench).run(inputs)
    error = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert np.median(error) < 0.002 and error.max() < 0.01


def test_replay_direct_and_threads_give_the_same_bits(bench: Any, isa: str) -> None:
    """A recorded program, the ops called one by one, and 1 .. 5 threads."""
    inputs = bench.inputs(40)
    expected = native(bench, "portable", threads=1, direct=True).run(inputs).tobytes()
    for threads in (1, 2, 3, 4, 5):
        assert native(bench, isa, threads=threads).run(inputs).tobytes() == expected
        assert native(bench, isa, threads=threads, direct=True).run(inputs).tobytes() == expected


def test_company_and_chunks_do_not_change_bits(bench: Any, isa: str) -> None:
    """A sequence alone and whole, and the same one cut up beside three others that move on too."""
    whole = native(bench, isa).run(bench.inputs(45))
    model = native(bench, isa)
    start, others = 0, 0
    for count in (1, 2, 16, 3, 13, 10):
        starts = [(others, 4), (start, count), (others, 1), (others, 7)]
        inputs = bench.inputs(sum(rows for _, rows in starts), starts, width=5)
        ids = inputs.token_ids.copy()
        ids[4 : 4 + count] = np.arange(start, start + count)
        got = model.run(replace(inputs, token_ids=ids))
        assert got[4 : 4 + count].tobytes() == whole[start : start + count].tobytes()
        start, others = start + count, others + 7


def test_counters(bench: Any, isa: str) -> None:
    """One capture, a replay a step, and a fallback with the same bits where the step is larger than the program."""
    model = native(bench, isa)
    for rows in (1, 5, 64, 5):
        model.run(bench.inputs(rows))
    assert (model.ops.captures, model.ops.replays, model.ops.fallbacks) == (1, 4, 0)
    large = native(bench, isa, max_step_tokens=8)
    assert large.run(bench.inputs(40)).tobytes() == model.run(bench.inputs(40)).tobytes()
    assert (large.ops.captures, large.ops.replays, large.ops.fallbacks) == (0, 0, 1)


def test_passes_are_joined(bench: Any, isa: str) -> None:
    """A layer is 8 passes of the program where the forward has 11 ops, and its buffers share memory."""
    model = native(bench, isa)
    model.run(bench.inputs(3))
    program = next(iter(model.ops._programs.values()))
    kinds = [op.kind for op in program.ops]
    assert kinds.count(library.LINEAR_SILU) == LAYERS and library.SILU_MUL not in kinds and library.QUANTISE not in kinds
    assert len(kinds) == 1 + 8 * LAYERS + 4 and kinds.count(library.ADD) == 1
    assert program.memory.nbytes < 64 * 4 * 2 * (4 * WIDTH + HIDDEN + (HEADS + 2 * KV_HEADS) * HEAD_DIM)


def test_only_wanted_rows_get_logits(bench: Any, isa: str) -> None:
    """R rows in the order asked for, none at all included."""
    model = native(bench, isa)
    every = model.run(bench.inputs(30))
    assert model.run(bench.inputs(30, logit_rows=[29, 3])).tobytes() == every[[29, 3]].tobytes()
    assert model.run(bench.inputs(30, logit_rows=[])).shape == (0, VOCAB)


def test_logits_go_to_the_callers_buffer(bench: Any, isa: str) -> None:
    """Recorded or direct, before or after a program was made."""
    for direct in (False, True):
        model = native(bench, isa, direct=direct)
        expected = model.run(bench.inputs(9))
        buffer = np.zeros((64, VOCAB), np.float32)
        model.ops.use_logits_buffer(buffer)
        got = model.ops.run(model.forward, bench.inputs(9))
        assert got.base is buffer or np.shares_memory(got, buffer)
        assert buffer[:9].tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="at least 64 rows"):
        model.ops.use_logits_buffer(np.zeros((4, VOCAB), np.float32))


def test_rotary_table_grows(bench: Any, isa: str) -> None:
    """A position past the table's end costs nothing but memory: the row before keeps its bits."""
    model = native(bench, isa)
    model.ops.allocate_kv(LAYERS, 300, KV_HEADS, HEAD_DIM)
    first = model.run(bench.inputs(3, width=300))
    model.run(bench.inputs(3, [(4000, 3)], width=300))
    assert model.run(bench.inputs(3, width=300)).tobytes() == first.tobytes()


def test_wrong_inputs_are_refused(bench: Any, isa: str) -> None:
    """Nothing that addresses memory is believed."""
    model = native(bench, isa)
    good = bench.inputs(6)

    def changed(name: str, place: Any, value: int) -> Any:
        array = getattr(good, name).copy()
        array[place] = value
        return replace(good, **{name: array})

    wrong = {
        "outside the vocabulary": [changed("token_ids", 2, VOCAB), changed("token_ids", 2, -1)],
        "block that does not exist": [changed("block_tables", (0, 0), 64), changed("block_tables", (0, 0), -1)],
        "outside its sequence": [changed("positions", 5, 6), changed("positions", 0, -1), changed("sequence_of_row", 0, 1)],
        "longer than its block table": [changed("context_lens", 0, 129)],
        "row that does not exist": [changed("logit_rows", 0, 6)],
        "row_start": [changed("row_start", 1, 5), changed("row_start", 0, 1)],
    }
    for message, cases in wrong.items():
        for inputs in cases:
            with pytest.raises(ValueError, match=message):
                model.run(inputs)
    model.ops.allocate_kv(1, 64, KV_HEADS, HEAD_DIM)
    with pytest.raises(ValueError, match="another shape"):
        model.run(good)


def test_forwards_that_do_not_end_in_logit_rows_are_refused(bench: Any, isa: str) -> None:
    """All N rows would not fit the result."""
    model = native(bench, isa)
    with pytest.raises(ValueError, match="gather_logit_rows"):
        model.ops.run(lambda ops: ops.embed(model.table), bench.inputs(3))
    with pytest.raises(ValueError, match="at most 2 at a time"):
        native(bench, isa, seats=2).run(bench.inputs(3))
