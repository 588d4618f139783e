"""The NumPy ops against plain float64 formulas, and the law that a row's bits are its own."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from workers.inputs import StepInputs
from workers.ops.protocol import RawTensor, Rope
from workers.ops.reference import ReferenceOps

RANDOM = np.random.default_rng(1)
H, K, D = 6, 2, 16


def raw(values: np.ndarray) -> RawTensor:
    values = values.astype(np.float32)
    return RawTensor("w", "F32", values.shape, values.reshape(-1).view(np.uint8))


def inputs(lengths: list[int], new: list[int]) -> StepInputs:
    """Sequences that hold `lengths` tokens of which the last `new` are computed now; blocks in falling order."""
    starts = np.array(lengths) - np.array(new)
    row_start = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    widest = max(-(-length // 16) for length in lengths)
    tables, block = np.zeros((len(lengths), widest), np.int32), 60
    for index, length in enumerate(lengths):
        for place in range(-(-length // 16)):
            tables[index, place] = block
            block -= 1
    positions = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, new, strict=True)])
    rows = np.repeat(np.arange(len(new)), new)
    return StepInputs(
        np.zeros(row_start[-1], np.int32),
        positions.astype(np.int32),
        rows.astype(np.int32),
        row_start,
        np.array(lengths, np.int32),
        tables,
        np.arange(row_start[-1], dtype=np.int32),
    )


def expected_attention(qkv: np.ndarray, positions: np.ndarray, inv_freq: np.ndarray, neox: bool) -> np.ndarray:
    """One sequence, all positions, in float64."""
    heads = qkv.astype(np.float64).reshape(len(qkv), H + 2 * K, D)
    angles = positions[:, None] * inv_freq
    first, second = (np.s_[..., : D // 2], np.s_[..., D // 2 :]) if neox else (np.s_[..., 0::2], np.s_[..., 1::2])
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    rotated = heads[:, : H + K].copy()
    rotated[first] = heads[:, : H + K][first] * cos - heads[:, : H + K][second] * sin
    rotated[second] = heads[:, : H + K][first] * sin + heads[:, : H + K][second] * cos
    out = np.empty((len(qkv), H, D))
    for row in range(len(qkv)):
        for head in range(H):
            keys, values = rotated[: row + 1, H + head // (H // K)], heads[: row + 1, H + K + head // (H // K)]
            scores = keys @ rotated[row, head] / np.sqrt(D)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values / weights.sum()
    return out.reshape(len(qkv), -1)


@pytest.mark.parametrize("neox", [False, True])
def test_rope_and_paged_attention_are_the_formula(neox):
    """Computed in ragged chunks over scattered blocks, within float16's error of the KV cache."""
    length, inv_freq = 45, 10000.0 ** (-np.arange(0, D, 2) / D)
    qkv = RANDOM.standard_normal((length, (H + 2 * K) * D)).astype(np.float32)
    ops = ReferenceOps(1)
    ops.allocate_kv(1, 64, K, D)
    got, start = [], 0
    for end in (1, 7, 16, 17, 40, 45):
        step = inputs([end], [end - start])

        def forward(ops, start=start, end=end):
            q = ops.rope_kv_write(qkv[start:end], 0, H, K, D, Rope(inv_freq, neox))
            return ops.attention(q, 0, H, K, D)

        got.append(ops.run(forward, step))
        start = end
    expected = expected_attention(qkv, np.arange(length), inv_freq, neox)
    assert np.abs(np.concatenate(got) - expected).max() < 5e-3


def test_linear_norm_and_silu_are_the_formulas():
    """Fused parts lie side by side; every output within float32's error."""
    x = RANDOM.standard_normal((21, 80)).astype(np.float32)
    parts = [RANDOM.standard_normal((rows, 80)).astype(np.float32) for rows in (30, 1100, 14)]
    ops = ReferenceOps(2)
    y = ops.linear(x, ops.matrix([raw(part) for part in parts]))
    assert np.allclose(y, x.astype(np.float64) @ np.concatenate(parts).astype(np.float64).T, atol=1e-3)
    weight = RANDOM.standard_normal(80).astype(np.float32)
    norm = ops.rms_norm(x, ops.vector(raw(weight)), 1e-5)
    wide = x.astype(np.float64)
    assert np.allclose(norm, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight, rtol=1e-5)
    gate, up = wide[:, :40], wide[:, 40:]
    assert np.allclose(ops.silu_mul(x), gate / (1 + np.exp(-gate)) * up, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("columns", [64, 576, 1536])
def test_a_rows_linear_is_the_same_at_every_place(columns):
    """1 .. 40 rows, every place, zeros or noise beside it: equal bits."""
    weight = RANDOM.standard_normal((200, columns)).astype(np.float32)
    row = RANDOM.standard_normal(columns).astype(np.float32)
    ops = ReferenceOps(1)
    matrix = ops.matrix([raw(weight)])
    expected = ops.linear(row[None], matrix)[0].tobytes()
    for count in range(1, 41):
        x = RANDOM.standard_normal((count, columns)).astype(np.float32)
        place = (count * 7) % count
        for where in {place, count - 1, 0}:
            noisy = x.copy()
            noisy[where] = row
            assert ops.linear(noisy, matrix)[where].tobytes() == expected


PROBE = """
import sys
import numpy as np
from workers.ops.protocol import RawTensor
from workers.ops.reference import ReferenceOps
random = np.random.default_rng(0)
weight = random.standard_normal((1500, 576)).astype(np.float32)
x = random.standard_normal((40, 576)).astype(np.float32)
ops = ReferenceOps(int(sys.argv[1]))
matrix = ops.matrix([RawTensor("w", "F32", weight.shape, weight.reshape(-1).view(np.uint8))])
whole = ops.linear(x, matrix)
assert all(ops.linear(x[i:i+1], matrix)[0].tobytes() == whole[i].tobytes() for i in range(40)), "a row depends on its place"
print(hash(whole.tobytes()))
"""


@pytest.mark.parametrize("kernels", ["Haswell", "SkylakeX", "Zen", "Sandybridge"])
def test_the_law_holds_on_other_machines_blas_kernels(kernels):
    """BLAS kernels that treat some rows of a tile differently are found by the probe; threads do not change a bit."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    printed = set()
    for threads in ("1", "3"):
        done = subprocess.run(
            [sys.executable, "-c", PROBE, threads],
            env={
                **base,
                "OPENBLAS_CORETYPE": kernels,
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": os.getcwd(),
            },
            capture_output=True,
            text=True,
        )
        if done.returncode < 0:
            pytest.skip(f"this processor cannot run {kernels} kernels")
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1
