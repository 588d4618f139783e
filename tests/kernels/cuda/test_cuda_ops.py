"""Whole steps on the CUDA ops, by the emulator: close to the reference, the same bits in any company and from any graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_places import place_of
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from workers.ops import sampling
from workers.ops.cuda.mixtures import Mixtures
from workers.ops.cuda.ops import CudaOps
from workers.ops.protocol import Expert, Ops, RecurrentShape, Rope, SampleRows, Value
from workers.ops.reference import ReferenceOps

HEADS, KV_HEADS, HEAD_DIM, WIDTH, HIDDEN, VOCAB, LAYERS = 4, 2, 16, 64, 96, 70, 2


@dataclass
class TinyLlama:
    """Layers of random weights in several formats, with everything that attention layers may have."""

    ops: Any
    bench: Any

    def __post_init__(self) -> None:
        def matrix(*parts: tuple[str, int, int, int]) -> Any:
            return self.ops.matrix([self.bench.random_weights(*part)[0] for part in parts])

        def vector(seed: int, size: int = WIDTH) -> Any:
            values = 1 + np.random.default_rng(seed).standard_normal(size).astype(np.float32) / 10
            return self.ops.vector(self.bench.raw("norm", "F32", (size,), values))

        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        self.table = matrix(("Q8_0", VOCAB, WIDTH, 1))
        self.layers = [
            (
                vector(seed),
                matrix(("Q4_1", q, WIDTH, seed), ("Q4_1", kv, WIDTH, seed + 1), ("Q8_0", kv, WIDTH, seed + 2)),
                vector(seed + 3, q + 2 * kv),
                vector(seed + 4, HEAD_DIM),
                matrix(("Q4_0", WIDTH, q, seed + 5)),
                vector(seed + 6),
                matrix(("F16", HIDDEN, WIDTH, seed + 7), ("Q4_1", HIDDEN, WIDTH, seed + 8)),
                matrix(("BF16", WIDTH, HIDDEN, seed + 9)),
            )
            for seed in range(10, 10 + 10 * LAYERS, 10)
        ]
        self.norm = vector(2)
        self.rope = Rope(1000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM), False)
        self.ops.allocate_kv(LAYERS, 64, KV_HEADS, HEAD_DIM)

    def forward(self, ops: Ops) -> Value:
        x = ops.scale(ops.embed(self.table), 3.0)
        shape = (HEADS, KV_HEADS, HEAD_DIM)
        for index, (norm, qkv, bias, of_head, output, ffn_norm, gate_up, down) in enumerate(self.layers):
            rows = ops.norm_heads(ops.linear(ops.rms_norm(x, norm, 1e-5), qkv, bias), of_head, of_head, *shape, 1e-5)
            q = ops.rope_kv_write(rows, index, *shape, self.rope)
            attended = ops.attention(q, index, *shape, window=20 * index, soft_cap=30.0 * index)
            x = ops.add(x, ops.linear(attended, output))
            hidden = ops.linear(ops.rms_norm(x, ffn_norm, 1e-5), gate_up)
            x = ops.add(x, ops.linear(ops.gelu_tanh_mul(hidden) if index else ops.silu_mul(hidden), down))
        return ops.soft_cap(ops.linear(ops.rms_norm(ops.gather_logit_rows(x), self.norm, 1e-5), self.table), 30.0)

    def run(self, inputs: Any) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = np.array(self.ops.run(self.forward, inputs))
        return logits


def on_cuda(bench: Any, **options: Any) -> TinyLlama:
    return TinyLlama(CudaOps(place_of(**options), 64, 64), bench)


def counters(model: TinyLlama) -> tuple[int, int, int, int]:
    graphs = model.ops.graphs
    return graphs.captures, graphs.replays, graphs.fallbacks, graphs.invalidations


def decode_steps(bench: Any, sequences: int, first: int, count: int) -> list[Any]:
    """`count` steps of one new row a sequence, from position `first`; every row wants logits."""
    return [bench.inputs(sequences, [(first + step, 1)] * sequences) for step in range(count)]


def test_close_to_the_reference(bench: Any) -> None:
    """Logits agree with the float32 reference to what the float16 of keys and values, which both round to, leaves."""
    inputs = bench.inputs(40)
    got, expected = on_cuda(bench).run(inputs), TinyLlama(ReferenceOps(threads=1), bench).run(inputs)
    error = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert error.max() < 1e-3


def test_company_and_chunks_do_not_change_bits(bench: Any) -> None:
    """A sequence alone and whole, and the same one cut up beside three others that move on too."""
    whole = on_cuda(bench).run(bench.inputs(45))
    model = on_cuda(bench, schedule="random")
    start, others = 0, 0
    for count in (1, 2, 16, 3, 13, 10):
        starts = [(others, 4), (start, count), (others, 1), (others, 7)]
        inputs = bench.inputs(sum(rows for _, rows in starts), starts, width=5)
        ids = inputs.token_ids.copy()
        ids[4 : 4 + count] = np.arange(start, start + count)
        got = model.run(replace(inputs, token_ids=ids))
        assert got[4 : 4 + count].tobytes() == whole[start : start + count].tobytes()
        start, others = start + count, others + 7


def test_replayed_and_direct_give_the_same_bits(bench: Any) -> None:
    """Decode steps of 1, 3 and 4 sequences (the last two share a bucket), captured or never captured."""
    captured, direct = on_cuda(bench), on_cuda(bench, refuse_capture=True)
    for sequences in (1, 3, 4):
        for inputs in decode_steps(bench, sequences, 0, 3):
            assert captured.run(inputs).tobytes() == direct.run(inputs).tobytes()
    assert counters(captured) == (2, 7, 2, 0)
    if not torch.cuda.is_available():
        assert counters(direct) == (0, 0, 9, 0)


def test_counters_of_what_is_not_captured(bench: Any) -> None:
    """Prompts run op by op; a bucket is captured after its first step; new KV, and a table that grows, throw graphs away."""
    model = on_cuda(bench)
    model.run(bench.inputs(9, logit_rows=[8]))
    assert counters(model) == (0, 0, 1, 0)
    first, second, third = decode_steps(bench, 2, 9, 3)
    model.run(first)
    expected = model.run(second)
    assert counters(model) == (1, 1, 2, 0)
    model.ops.allocate_kv(LAYERS, 64, KV_HEADS, HEAD_DIM)
    assert counters(model) == (1, 1, 2, 1)
    for inputs in (bench.inputs(9, logit_rows=[8]), first):
        model.run(inputs)
    assert model.run(second).shape == expected.shape and counters(model) == (2, 2, 4, 1)
    model.run(replace(third, block_tables=np.repeat(third.block_tables, 2, axis=1)))
    assert counters(model) == (3, 2, 5, 2)


def test_logits_go_to_the_callers_buffer(bench: Any) -> None:
    """Those rows that are asked for, and no others; a step may want none; too many are refused."""
    model = on_cuda(bench)
    every = model.run(bench.inputs(9))
    buffer = np.zeros((9, VOCAB), np.float32)
    model.ops.use_logits_buffer(buffer)
    got = model.ops.run(model.forward, bench.inputs(9, logit_rows=[8, 3]))
    assert got.fetched == 0 and not buffer.any()
    assert got[1].tobytes() == every[3].tobytes() and np.shares_memory(got[1], buffer) and not buffer[0].any()
    assert np.asarray(got).tobytes() == every[[8, 3]].tobytes() and np.shares_memory(np.asarray(got), buffer)
    assert model.run(bench.inputs(9, logit_rows=[])).shape == (0, VOCAB)
    with pytest.raises(ValueError, match="at most 9 at a time"):
        model.run(bench.inputs(10))


def test_wrong_inputs_are_refused(bench: Any) -> None:
    """Nothing that addresses device memory is believed, on the first step or from a graph."""
    model = on_cuda(bench)
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


def test_draws_are_the_definitions(bench: Any) -> None:
    """Ids of `Ops.sample`, filters and a broken row included, and the words for that row."""
    random = np.random.default_rng(3)
    logits = random.standard_normal((5, 300)).astype(np.float32) * 3
    logits[2, 7] = np.nan
    rows = SampleRows(
        np.array([0, 1, 1, 0.7, 2], np.float32),
        np.array([0, 5, 0, 0, 40], np.int32),
        np.array([1, 1, 1, 0.8, 0.9], np.float32),
        np.array([0, 0, 0, 0.01, 0], np.float32),
        np.array([1, 2**64 - 1, 3, 4, 5], np.uint64),
        np.arange(5, dtype=np.int32),
    )
    ids, errors = CudaOps(place_of(), 64).sample(logits, rows)
    expected_ids, expected_errors = sampling.sample(logits, rows)
    assert ids.tolist() == expected_ids.tolist() and errors == expected_errors and "1 NaN" in errors[2]


def test_nothing_is_drawn_of_no_rows() -> None:
    """A step that ends no prompt."""
    none = np.empty(0, np.float32)
    rows = SampleRows(none, none.astype(np.int32), none, none, none.astype(np.uint64), none.astype(np.int32))
    ids, errors = CudaOps(place_of(), 64).sample(np.empty((0, 300), np.float32), rows)
    assert ids.tolist() == errors == []


class TinyHybrid:
    """One recurrent layer."""

    shape = RecurrentShape(layers=2, key_heads=1, value_heads=2, key_dim=64, value_dim=128, kernel=4)

    def __init__(self, ops: Any, bench: Any) -> None:
        self.ops, width = ops, 96
        values = self.shape.value_heads * self.shape.value_dim

        def matrix(rows: int, columns: int, seed: int) -> Any:
            return ops.matrix([bench.random_weights("F32", rows, columns, seed)[0]])

        def vector(size: int, seed: int) -> Any:
            return ops.vector(
                bench.raw("v", "F32", (size,), np.random.default_rng(seed).standard_normal(size).astype(np.float32))
            )

        self.table, self.into, self.gates = matrix(50, width, 1), matrix(self.shape.channels, width, 2), matrix(4, width, 3)
        self.gate, self.out = matrix(values, width, 4), matrix(width, values, 5)
        self.taps, self.decay, self.bias = vector(4 * self.shape.channels, 6), vector(2, 7), vector(2, 8)
        self.norm = vector(self.shape.value_dim, 9)
        ops.allocate_kv(1, 64, 1, 16)
        ops.allocate_state(self.shape, 6)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.table)
        qkv = ops.causal_conv_update(ops.linear(x, self.into), self.taps, 1)
        moved = ops.recurrent_update(qkv, ops.gdn_gating(ops.linear(x, self.gates), self.decay, self.bias), 1)
        gate = ops.linear(x, self.gate)
        x = ops.linear(ops.sigmoid_mul(ops.gated_rms_norm(moved, gate, self.norm, 1e-6), gate), self.out)
        return ops.linear(ops.gather_logit_rows(x), self.table)

    def run(self, inputs: Any, slots: list[int]) -> NDArray[np.float32]:
        logits = self.ops.run(self.forward, replace(inputs, state_slots=np.array(slots, np.int32)))
        return np.array(logits)


def test_recurrent_layers(bench: Any) -> None:
    """Close to the reference; a sequence in pieces, from graphs and beside another has the bits it has whole; a saved state goes on."""
    whole = TinyHybrid(CudaOps(place_of(), 64), bench).run(bench.inputs(12), [2])
    reference = TinyHybrid(ReferenceOps(threads=1), bench).run(bench.inputs(12), [2])
    assert np.abs(whole - reference).max() < 1e-3 * np.abs(reference).max()
    model = TinyHybrid(CudaOps(place_of(), 64), bench)
    first = bench.inputs(9, [(0, 3), (0, 6)])
    got = [model.run(replace(first, token_ids=np.r_[:3, :6].astype(np.int32)), [4, 2])[3:]]
    model.ops.copy_state(2, 5)
    for slot in (2, 5):
        parts = []
        for position in range(6, 12):
            step = bench.inputs(1, [(position, 1)])
            parts.append(model.run(replace(step, token_ids=np.array([position], np.int32)), [slot]))
        assert np.concatenate([*got, *parts]).tobytes() == whole.tobytes()
    assert model.ops.graphs.replays == 11
    for slots, words in (([6], "slot that does not exist"), ([-1], "slot that does not exist")):
        with pytest.raises(ValueError, match=words):
            model.run(bench.inputs(1), slots)
    with pytest.raises(ValueError, match="slot that two sequences share"):
        model.run(bench.inputs(2, [(0, 1), (0, 1)]), [3, 3])


def test_seats_of_a_model_without_recurrent_layers(bench: Any) -> None:
    """Every step names its sequences' seats; without recurrent state they mean nothing."""
    model = on_cuda(bench)
    assert (
        model.run(replace(bench.inputs(3), state_slots=np.array([63], np.int32))).tobytes()
        == model.run(bench.inputs(3)).tobytes()
    )


def test_what_has_no_kernel_is_refused(bench: Any) -> None:
    """By name, and with what to do instead."""
    ops = CudaOps(place_of(), 64)
    with pytest.raises(ModelFileError, match=r"heads of 24 have no GPU kernel.*--device cpu"):
        ops.allocate_kv(1, 4, 1, 24)
    unequal = [Expert(*(ops.matrix([bench.random_weights("F32", rows, 32)[0]]) for _ in range(2))) for rows in (32, 64)]
    with pytest.raises(ModelFileError, match="experts of 64 x 32 and of 32 x 32; use --device cpu"):
        Mixtures("cpu").of(unequal)
    with pytest.raises(ModelFileError, match="blocks of 32"):
        ops.matrix([bench.raw("w", "F32", (2, 20), np.zeros((2, 20), np.float32))])
    with pytest.raises(ModelFileError, match="3 taps"):
        ops.allocate_state(RecurrentShape(1, 1, 1, 64, 128, 3), 1)
