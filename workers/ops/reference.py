"""The ops in NumPy: the oracle, the documentation, and the fallback where nothing was compiled.

Exact without trusting BLAS: a linear is cut into chunks of one width and tiles of rows of one height, each a single-threaded
product of a shape that was probed on this machine (a BLAS kernel may treat rows 12 .. 15 of 16 differently, columns at an edge, or
one thread's share). So neither a row's place counts nor an output's, and a rank that holds some outputs of a linear gets the same
bits. Attention multiplies fixed blocks of 16 positions, so a row's sums have the same shape whatever is computed beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from helexa.formats.ggml_types import dequantise
from workers.group import Group, Parts, columns_of
from workers.inputs import StepInputs
from workers.ops import recurrent, sampling
from workers.ops.protocol import (
    BLOCK_SIZE,
    Expert,
    Float32,
    Logits,
    Matrix,
    Ops,
    RawTensor,
    RecurrentShape,
    Rope,
    SampleRows,
    Value,
    Vector,
)

TILES = ((16, 64), (12, 64), (8, 64), (8, 16), (4, 16), (1, 16), (1, 1))  # (rows, columns) to try, best first
CHUNKS_TOGETHER = 16  # that a thread computes
ROPE_TABLE_ROWS = 1024

BLAS_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class DenseMatrix:
    """float32 (O, K) as `chunks` (chunks, columns of a tile, K), the last filled up with zeros."""

    chunks: Float32
    outputs: int
    tile_rows: int

    @property
    def weight(self) -> Float32:
        return self.chunks.reshape(-1, self.chunks.shape[-1])[: self.outputs]


def probe_tile(columns: int) -> tuple[int, int]:
    """The largest (tile, K) x (K, outputs) product in which equal rows get equal bits at every place, and so do equal outputs."""
    random = np.random.default_rng(columns)
    for rows, outputs in TILES:
        x = random.standard_normal((rows, columns), dtype=np.float32)
        weight = random.standard_normal((outputs, columns), dtype=np.float32)
        by_row = _tile_product(np.broadcast_to(x[:1], x.shape).copy(), weight)
        by_column = _tile_product(x, np.broadcast_to(weight[:1], weight.shape).copy())
        beside_others = _tile_product(x, weight)
        if (
            (by_row == beside_others[0]).all()
            and (by_row == by_row[:1]).all()
            and (by_column == by_column[:, :1]).all()
            and (by_column[:, 0] == beside_others[:, 0]).all()
        ):
            return rows, outputs
    return TILES[-1]


def _tile_product(rows: Float32, weight: Float32) -> Float32:
    product: Float32 = np.matmul(rows[None], weight[None].transpose(0, 2, 1))[0]
    return product


@dataclass
class _Kv:
    keys: NDArray[np.floating[Any]]  # L blocks K S D
    values: NDArray[np.floating[Any]]


@dataclass
class ReferenceOps:
    """See workers/ops/protocol.py. Use BLAS_ENVIRONMENT for the process: threads are this class's own. Keys and values are kept in
    `kv_type`: float16 as all ops do, float32 to compare a model with another implementation."""

    threads: int
    name: str = field(init=False)
    remedy: str = ""
    kind: str = "reference"
    kv_type: type[np.floating[Any]] = np.float16

    def __post_init__(self) -> None:
        self.name = f"reference (NumPy, {self.threads} thread{'s' if self.threads > 1 else ''})"
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None
        self._kv: _Kv | None = None
        self._states: recurrent.States | None = None
        self._logits: Float32 | None = None
        self._inputs: StepInputs | None = None
        self._tiles: dict[int, tuple[int, int]] = {}
        self._group: Group | None = None
        self._rope_tables: dict[tuple[bytes, float], tuple[Float32, Float32]] = {}

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        columns, outputs = parts[0].shape[-1], sum(part.shape[0] for part in parts)
        if columns not in self._tiles:
            self._tiles[columns] = probe_tile(columns)
        tile_rows, tile_columns = self._tiles[columns]
        chunks = np.zeros((-(-outputs // tile_columns), tile_columns, columns), np.float32)
        dense = DenseMatrix(chunks, outputs, tile_rows)
        np.concatenate([dequantise(part.type, part.data, columns) for part in parts], out=dense.weight)
        return cast(Matrix, dense)

    def vector(self, tensor: RawTensor) -> Vector:
        return cast(Vector, dequantise(tensor.type, tensor.data, tensor.shape[-1]).reshape(-1))

    def bytes_per_block(self, layers: int, kv_heads: int, head_dim: int) -> int:
        return 2 * layers * kv_heads * BLOCK_SIZE * head_dim * np.dtype(self.kv_type).itemsize

    def allocate_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> int:
        shape = (layers, blocks, kv_heads, BLOCK_SIZE, head_dim)
        self._kv = None
        self._kv = _Kv(np.zeros(shape, self.kv_type), np.zeros(shape, self.kv_type))
        return self._kv.keys.nbytes + self._kv.values.nbytes

    def bytes_per_state(self, shape: RecurrentShape) -> int:
        return recurrent.States.zeros(shape, 1).nbytes

    def allocate_state(self, shape: RecurrentShape, slots: int) -> int:
        self._states = None
        self._states = recurrent.States.zeros(shape, slots)
        return self._states.nbytes

    def copy_state(self, source: int, target: int) -> None:
        assert self._states is not None, "allocate_state comes first"
        self._states.copy(source, target)

    def use_logits_buffer(self, buffer: Float32) -> None:
        self._logits = buffer

    def use_group(self, group: Group | None) -> None:
        self._group = group

    def run(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> Float32:
        self._inputs = inputs
        logits = cast(Float32, forward(self))
        if self._logits is None or np.shares_memory(logits, self._logits):
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

    def scale(self, x: Value, factor: float) -> Value:
        return cast(Value, cast(Float32, x) * np.float32(factor))

    def soft_cap(self, x: Value, cap: float) -> Value:
        return cast(Value, _softly_capped(cast(Float32, x), cap))

    def linear(self, x: Value, weight: Matrix, bias: Vector | None = None) -> Value:
        out = self.product(cast(Float32, x), cast(DenseMatrix, weight))
        return cast(Value, out if bias is None else out + cast(Float32, bias))

    def product(self, rows: Float32, dense: DenseMatrix) -> Float32:
        """N O: rows @ weight.T, in tiles of one shape."""
        count, tile, (chunks, chunk_columns, columns) = len(rows), dense.tile_rows, dense.chunks.shape
        tiles = -(-count // tile)
        padded = np.zeros((tiles, 1, tile, columns), np.float32)
        padded.reshape(-1, columns)[:count] = rows
        out = np.empty((tiles, chunks, tile, chunk_columns), np.float32)

        def some(first: int) -> None:
            part = slice(first, first + CHUNKS_TOGETHER)
            np.matmul(padded, dense.chunks[part].transpose(0, 2, 1), out=out[:, part])

        starts = range(0, chunks, CHUNKS_TOGETHER)
        if self._pool is None or len(starts) == 1:
            for start in starts:
                some(start)
        else:
            list(self._pool.map(some, starts))
        whole = out.transpose(0, 2, 1, 3).reshape(tiles * tile, chunks * chunk_columns)
        return np.ascontiguousarray(whole[:count, : dense.outputs])

    def norm_heads(
        self, qkv: Value, q_weight: Vector, k_weight: Vector, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> Value:
        rows = cast(Float32, qkv)
        q, k, v = np.split(rows.reshape(len(rows), heads + 2 * kv_heads, head_dim), [heads, heads + kv_heads], axis=1)
        q, k = (cast(Float32, self.rms_norm(cast(Value, x), weight, eps)) for x, weight in ((q, q_weight), (k, k_weight)))
        return cast(Value, np.concatenate([q, k, v], axis=1).reshape(rows.shape))

    def rope_kv_write(self, qkv: Value, layer: int, heads: int, kv_heads: int, head_dim: int, rope: Rope) -> Value:
        assert self._kv is not None, "allocate_kv comes first"
        step, rows = self._step, cast(Float32, qkv)
        by_head = rows.reshape(len(rows), heads + 2 * kv_heads, head_dim)
        cos, sin = self._rope_table(rope, int(step.positions.max(initial=0)))
        rotated = _rotate(by_head[:, : heads + kv_heads], cos[step.positions], sin[step.positions], rope.neox)
        blocks = step.block_tables[step.sequence_of_row, step.positions // BLOCK_SIZE]
        places = step.positions % BLOCK_SIZE
        with np.errstate(over="ignore"):  # a value too large for float16 becomes infinite, and its row is reported
            self._kv.keys[layer, blocks, :, places] = rotated[:, heads:].astype(self.kv_type)
            self._kv.values[layer, blocks, :, places] = by_head[:, heads + kv_heads :].astype(self.kv_type)
        return cast(Value, rotated[:, :heads].reshape(len(rows), heads * head_dim))

    def _rope_table(self, rope: Rope, last: int) -> tuple[Float32, Float32]:
        """cos and sin by position; grown by whole pieces of one shape, so that a position's bits never change."""
        key = (rope.inv_freq.tobytes(), rope.scale)
        table = self._rope_tables.get(key)
        if table is None or len(table[0]) <= last:
            pieces = range(0, last + 1, ROPE_TABLE_ROWS)
            angles = [(np.arange(start, start + ROPE_TABLE_ROWS)[:, None] * rope.inv_freq) for start in pieces]
            cos = np.concatenate([(rope.scale * np.cos(piece)).astype(np.float32) for piece in angles])
            sin = np.concatenate([(rope.scale * np.sin(piece)).astype(np.float32) for piece in angles])
            table = self._rope_tables[key] = (cos, sin)
        return table

    def attention(
        self,
        q: Value,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale: float | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Value:
        assert self._kv is not None, "allocate_kv comes first"
        step, queries = self._step, cast(Float32, q)
        rule = _AttentionRule(np.float32(head_dim**-0.5 if scale is None else scale), window, soft_cap)
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
                out[first:last] = _attend(rows, keys[:held], values[:held], position, rule).reshape(last - first, -1)
                first = last
        return cast(Value, out)

    def silu_mul(self, gate_up: Value) -> Value:
        gate, up = np.split(cast(Float32, gate_up), 2, axis=-1)
        with np.errstate(over="ignore"):
            return cast(Value, gate / (1 + np.exp(-gate)) * up)

    def gelu_tanh_mul(self, gate_up: Value) -> Value:
        """gate / 2 * (1 + tanh(u)) is gate / (1 + exp(-2 u)), which keeps its precision where tanh is near -1."""
        gate, up = np.split(cast(Float32, gate_up), 2, axis=-1)
        with np.errstate(over="ignore"):
            u = np.float32((2 / np.pi) ** 0.5) * gate * (1 + np.float32(0.044715) * gate * gate)
            return cast(Value, gate / (1 + np.exp(-2 * u)) * up)

    def moe_ffn(
        self,
        x: Value,
        scores: Value,
        experts: Sequence[Expert],
        top_k: int,
        normalise: bool,
        hidden: Sequence[int] = (),
    ) -> Value:
        rows, logits = cast(Float32, x), cast(Float32, scores)
        chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :top_k]
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights = np.take_along_axis(odds, chosen, axis=-1)
        weights /= np.add.reduce(weights if normalise else odds, axis=-1, keepdims=True)
        parts = np.empty((len(rows), top_k, cast(DenseMatrix, experts[0].down).outputs), np.float32)
        for index in np.unique(chosen):
            where = np.nonzero(chosen == index)
            between = self.silu_mul(self.linear(cast(Value, rows[where[0]]), experts[index].gate_up))
            if hidden:
                between = self.all_gather(between, [hidden])
            parts[where] = cast(Float32, self.linear(between, experts[index].down))
        total: Float32 = weights[:, 0, None] * parts[:, 0]
        for rank in range(1, top_k):
            total += weights[:, rank, None] * parts[:, rank]
        return cast(Value, total)

    def gather_logit_rows(self, x: Value) -> Value:
        return cast(Value, cast(Float32, x)[self._step.logit_rows])

    @property
    def _ranks(self) -> Group:
        assert self._group is not None, "use_group comes first"
        return self._group

    def all_gather(self, x: Value, parts: Parts) -> Value:
        return cast(Value, self._ranks.gather(cast(Float32, x), parts))

    def embed_across(self, table: Matrix, first_id: int) -> Value:
        weight, ids = cast(DenseMatrix, table).weight, self._step.token_ids - first_id

        def write(region: Float32, first: int) -> None:
            wanted = ids[first : first + len(region)]
            here = (wanted >= 0) & (wanted < len(weight))
            region[here] = weight[wanted[here]]

        return cast(Value, self._ranks.put_together(len(ids), weight.shape[1], write))

    def gather_logits(self, x: Value, widths: Sequence[int]) -> Value:
        rows, ranks = cast(Float32, x), self._ranks
        ranks.logits[: len(rows), columns_of([widths], ranks.rank)] = rows
        if len(rows):
            ranks.meet()
        return cast(Value, ranks.logits[: len(rows) if ranks.rank == 0 else 0])

    def _each_state(self) -> Iterator[tuple[slice, int, bool]]:
        """Rows, slot, and whether they begin the sequence, of each sequence with rows."""
        step = self._step
        for sequence, slot in enumerate(step.state_slots.tolist()):
            first, end = int(step.row_start[sequence]), int(step.row_start[sequence + 1])
            if first < end:
                yield slice(first, end), slot, int(step.positions[first]) == 0

    def causal_conv_update(self, x: Value, weight: Vector, layer: int) -> Value:
        assert self._states is not None, "allocate_state comes first"
        rows, out = cast(Float32, x), np.empty_like(cast(Float32, x))
        taps = cast(Float32, weight).reshape(-1, rows.shape[-1])
        for part, slot, begins in self._each_state():
            past = self._states.past[slot, layer]
            if begins:
                past[...] = 0
            out[part] = recurrent.convolve(rows[part], taps, past)
        return cast(Value, out)

    def gdn_gating(self, ba: Value, decay: Vector, dt_bias: Vector) -> Value:
        return cast(Value, recurrent.gates(cast(Float32, ba), cast(Float32, decay), cast(Float32, dt_bias)))

    def recurrent_update(self, qkv: Value, gates: Value, layer: int) -> Value:
        assert self._states is not None, "allocate_state comes first"
        rows, gate_rows, shape = cast(Float32, qkv), cast(Float32, gates), self._states.shape
        out = np.empty((len(rows), shape.value_heads * shape.value_dim), np.float32)
        for part, slot, begins in self._each_state():
            matrices = self._states.matrices[slot, layer]
            if begins:
                matrices[...] = 0
            out[part] = recurrent.delta_rule(rows[part], gate_rows[part], shape, matrices)
        return cast(Value, out)

    def gated_rms_norm(self, x: Value, gate: Value, weight: Vector, eps: float) -> Value:
        return cast(Value, recurrent.gated_norm(cast(Float32, x), cast(Float32, gate), cast(Float32, weight), eps))

    def sigmoid_mul(self, x: Value, gate: Value) -> Value:
        return cast(Value, cast(Float32, x) * recurrent.sigmoid(cast(Float32, gate)))

    def sample(self, logits: Logits, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
        return sampling.sample(np.asarray(logits, np.float32), rows)


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


@dataclass(frozen=True)
class _AttentionRule:
    """See Ops.attention."""

    scale: np.float32
    window: int
    soft_cap: float


def _softly_capped(x: Float32, cap: float) -> Float32:
    with np.errstate(invalid="ignore"):
        capped: Float32 = np.float32(cap) * np.tanh(x / np.float32(cap)) + np.float32(0) * x
    return capped


def _attend(rows: Float32, keys: Float32, values: Float32, position: int, rule: _AttentionRule) -> Float32:
    """Softmax attention of rows (m K G D) at positions position .. position + m - 1 over blocks (b K S D)."""
    count, kv_heads, group, _ = rows.shape
    held = len(keys)
    scaled = np.ascontiguousarray((rows * rule.scale).transpose(0, 1, 3, 2))  # m K D G
    scores = np.matmul(keys[None], scaled[:, None])  # m b K S G
    scores = np.ascontiguousarray(scores.transpose(0, 2, 4, 1, 3)).reshape(count, kv_heads, group, held * BLOCK_SIZE)
    if rule.soft_cap:
        scores = _softly_capped(scores, rule.soft_cap)
    for row in range(count):
        scores[row, ..., position + row + 1 :] = -np.inf
        if rule.window:
            scores[row, ..., : max(0, position + row + 1 - rule.window)] = -np.inf
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
