"""The ops in NumPy: the oracle, the documentation, and the fallback where nothing was compiled.

Exact without trusting BLAS: a linear is cut into fixed column chunks, each a single-threaded product of a tile of rows whose
height was probed on this machine (a BLAS kernel may treat rows 12 .. 15 of 16 differently, or one thread's share); attention
multiplies fixed blocks of 16 positions, so a row's sums have the same shape whatever is computed beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from helexa.formats.ggml_types import dequantise
from workers.inputs import StepInputs
from workers.ops import sampling
from workers.ops.protocol import BLOCK_SIZE, Float32, Matrix, Ops, RawTensor, Rope, SampleRows, Value, Vector

TILE_ROWS = (16, 12, 8, 4, 2, 1)  # heights to try, best first
COLUMN_CHUNK = 1024
ROPE_TABLE_ROWS = 1024

BLAS_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class DenseMatrix:
    """float32 (O, K), with the tile height of each of its column chunks' shape."""

    weight: Float32
    tile_rows: int


def probe_tile_rows(columns: int, outputs: int) -> int:
    """The tallest tile of a (tile, K) x (K, O) product in which equal rows get equal bits at every place."""
    random = np.random.default_rng(columns * 65537 + outputs)
    weight = random.standard_normal((outputs, columns), dtype=np.float32)
    row = random.standard_normal(columns, dtype=np.float32)
    for tile in TILE_ROWS:
        equal = np.broadcast_to(row, (tile, columns)) @ weight.T
        alone = np.zeros((tile, columns), np.float32)
        alone[0] = row
        expected = (alone @ weight.T)[0].tobytes()
        if all(equal[place].tobytes() == expected for place in range(tile)):
            return tile
    return 1


@dataclass
class _Kv:
    keys: NDArray[np.float16]  # L blocks K S D
    values: NDArray[np.float16]


@dataclass
class ReferenceOps:
    """See workers/ops/protocol.py. Use BLAS_ENVIRONMENT for the process: threads are this class's own."""

    threads: int
    name: str = field(init=False)
    remedy: str = ""
    kind: str = "reference"

    def __post_init__(self) -> None:
        self.name = f"reference (NumPy, {self.threads} thread{'s' if self.threads > 1 else ''})"
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None
        self._kv: _Kv | None = None
        self._logits: Float32 | None = None
        self._inputs: StepInputs | None = None
        self._tiles: dict[tuple[int, int], int] = {}
        self._rope_tables: dict[int, tuple[Float32, Float32]] = {}

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        weight = np.concatenate([dequantise(part.type, part.data, part.shape[-1]) for part in parts])
        outputs, columns = weight.shape
        widths = {min(COLUMN_CHUNK, outputs - start) for start in range(0, outputs, COLUMN_CHUNK)}
        return cast(Matrix, DenseMatrix(weight, min(self._tile(columns, width) for width in widths)))

    def _tile(self, columns: int, width: int) -> int:
        if (columns, width) not in self._tiles:
            self._tiles[columns, width] = probe_tile_rows(columns, width)
        return self._tiles[columns, width]

    def vector(self, tensor: RawTensor) -> Vector:
        return cast(Vector, dequantise(tensor.type, tensor.data, tensor.shape[-1]).reshape(-1))

    def bytes_per_block(self, layers: int, kv_heads: int, head_dim: int) -> int:
        return 2 * layers * kv_heads * BLOCK_SIZE * head_dim * np.dtype(np.float16).itemsize

    def allocate_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> int:
        shape = (layers, blocks, kv_heads, BLOCK_SIZE, head_dim)
        self._kv = None
        self._kv = _Kv(np.zeros(shape, np.float16), np.zeros(shape, np.float16))
        return self._kv.keys.nbytes + self._kv.values.nbytes

    def use_logits_buffer(self, buffer: Float32) -> None:
        self._logits = buffer

    def run(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> Float32:
        self._inputs = inputs
        logits = cast(Float32, forward(self))
        if self._logits is None:
            return logits
        shared = self._logits[: len(logits)]
        shared[...] = logits
        return shared

    @property
    def _step(self) -> StepInputs:
        assert self._inputs is not None, "ops are called within run"
        return self._inputs

    def embed(self, table: Matrix) -> Value:
        return cast(Value, cast(DenseMatrix, table).weight[self._step.token_ids])

    def rms_norm(self, x: Value, weight: Vector, eps: float) -> Value:
        rows = cast(Float32, x)
        mean = np.add.reduce(rows * rows, axis=-1, keepdims=True) / np.float32(rows.shape[-1])
        return cast(Value, rows / np.sqrt(mean + np.float32(eps)) * cast(Float32, weight))

    def add(self, x: Value, y: Value) -> Value:
        return cast(Value, cast(Float32, x) + cast(Float32, y))

    def linear(self, x: Value, weight: Matrix) -> Value:
        rows, dense = cast(Float32, x), cast(DenseMatrix, weight)
        count, (outputs, columns), tile = len(rows), dense.weight.shape, dense.tile_rows
        tiles = -(-count // tile)
        padded = np.zeros((tiles, tile, columns), np.float32)
        padded.reshape(-1, columns)[:count] = rows
        out = np.empty((tiles, tile, outputs), np.float32)

        def chunk(start: int) -> None:
            part = dense.weight[start : start + COLUMN_CHUNK].T
            for index in range(tiles):
                out[index, :, start : start + COLUMN_CHUNK] = padded[index] @ part

        starts = range(0, outputs, COLUMN_CHUNK)
        if self._pool is None or len(starts) == 1:
            for start in starts:
                chunk(start)
        else:
            list(self._pool.map(chunk, starts))
        return cast(Value, out.reshape(-1, outputs)[:count])

    def rope_kv_write(self, qkv: Value, layer: int, heads: int, kv_heads: int, head_dim: int, rope: Rope) -> Value:
        assert self._kv is not None, "allocate_kv comes first"
        step, rows = self._step, cast(Float32, qkv)
        by_head = rows.reshape(len(rows), heads + 2 * kv_heads, head_dim)
        cos, sin = self._rope_table(rope, int(step.positions.max(initial=0)))
        rotated = _rotate(by_head[:, : heads + kv_heads], cos[step.positions], sin[step.positions], rope.neox)
        blocks = step.block_tables[step.sequence_of_row, step.positions // BLOCK_SIZE]
        places = step.positions % BLOCK_SIZE
        with np.errstate(over="ignore"):  # a value too large for float16 becomes infinite, and its row is reported
            self._kv.keys[layer, blocks, :, places] = rotated[:, heads:].astype(np.float16)
            self._kv.values[layer, blocks, :, places] = by_head[:, heads + kv_heads :].astype(np.float16)
        return cast(Value, rotated[:, :heads].reshape(len(rows), heads * head_dim))

    def _rope_table(self, rope: Rope, last: int) -> tuple[Float32, Float32]:
        """cos and sin by position; grown by whole pieces of one shape, so that a position's bits never change."""
        table = self._rope_tables.get(id(rope.inv_freq))
        if table is None or len(table[0]) <= last:
            pieces = range(0, last + 1, ROPE_TABLE_ROWS)
            angles = [(np.arange(start, start + ROPE_TABLE_ROWS)[:, None] * rope.inv_freq) for start in pieces]
            cos = np.concatenate([np.cos(piece).astype(np.float32) for piece in angles])
            sin = np.concatenate([np.sin(piece).astype(np.float32) for piece in angles])
            table = self._rope_tables[id(rope.inv_freq)] = (cos, sin)
        return table

    def attention(self, q: Value, layer: int, heads: int, kv_heads: int, head_dim: int) -> Value:
        assert self._kv is not None, "allocate_kv comes first"
        step, queries = self._step, cast(Float32, q)
        out = np.empty_like(queries)
        for sequence in range(len(step.context_lens)):
            first, end = int(step.row_start[sequence]), int(step.row_start[sequence + 1])
            blocks = step.block_tables[sequence, : -(-int(step.context_lens[sequence]) // BLOCK_SIZE)]
            keys = self._kv.keys[layer, blocks].astype(np.float32)  # blocks K S D
            values = self._kv.values[layer, blocks].astype(np.float32)
            while first < end:
                position = int(step.positions[first])
                held = position // BLOCK_SIZE + 1  # rows whose last block is the same are computed together
                last = min(end, first + held * BLOCK_SIZE - position)
                rows = queries[first:last].reshape(last - first, kv_heads, heads // kv_heads, head_dim)
                out[first:last] = _attend(rows, keys[:held], values[:held], position).reshape(last - first, -1)
                first = last
        return cast(Value, out)

    def silu_mul(self, gate_up: Value) -> Value:
        gate, up = np.split(cast(Float32, gate_up), 2, axis=-1)
        with np.errstate(over="ignore"):
            return cast(Value, gate / (1 + np.exp(-gate)) * up)

    def gather_logit_rows(self, x: Value) -> Value:
        return cast(Value, cast(Float32, x)[self._step.logit_rows])

    def sample(self, logits: Float32, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
        return sampling.sample(logits, rows)


def _rotate(x: Float32, cos: Float32, sin: Float32, neox: bool) -> Float32:
    """N heads D, by cos and sin (N, rotary_dim / 2): Su et al. 2021, equation 34."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    out = x.copy()
    first: Any = np.s_[..., :half] if neox else np.s_[..., 0 : 2 * half : 2]
    second: Any = np.s_[..., half : 2 * half] if neox else np.s_[..., 1 : 2 * half : 2]
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[first] * sin + x[second] * cos
    return out


def _attend(rows: Float32, keys: Float32, values: Float32, position: int) -> Float32:
    """Softmax attention of rows (m K G D) at positions position .. position + m - 1 over blocks (b K S D)."""
    count, kv_heads, group, head_dim = rows.shape
    held = len(keys)
    scaled = np.ascontiguousarray((rows * np.float32(head_dim**-0.5)).transpose(0, 1, 3, 2))  # m K D G
    scores = np.matmul(keys[None], scaled[:, None])  # m b K S G
    scores = np.ascontiguousarray(scores.transpose(0, 2, 4, 1, 3)).reshape(count, kv_heads, group, held * BLOCK_SIZE)
    for row in range(count):
        scores[row, ..., position + row + 1 :] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= np.add.reduce(weights, axis=-1, keepdims=True)
    blocks = np.ascontiguousarray(weights.reshape(count, kv_heads, group, held, BLOCK_SIZE).transpose(0, 3, 1, 2, 4))
    partial = np.matmul(blocks, values[None])  # m b K G D
    total: Float32 = partial[:, 0].copy()
    for block in range(1, held):
        total += partial[:, block]
    return total


def blas_is_single_threaded() -> bool:
    """Whether the process was started as BLAS_ENVIRONMENT asks."""
    return all(os.environ.get(name) == value for name, value in BLAS_ENVIRONMENT.items())
