"""The ops protocol: all that a model's forward may use.

A forward is Python over ops on opaque `Value`s: no operators, no slicing, no branch on the number of rows. So an implementation
may compute at once, or record the calls and replay them for any N. Shapes are in the dims of the glossary: N new tokens,
B sequences, R logit rows, H heads, K KV heads, D head dim, V vocab, L layers, S block size; E is the hidden width.

The law (X1): a row's bits depend only on that row, its sequence's KV and the weights: never on N, B, the other rows, the
row's place, or the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.inputs import BLOCK_SIZE, StepInputs

Value = NewType("Value", object)  # an activation, rows first
Matrix = NewType("Matrix", object)  # a weight of a linear, packed as the ops like
Vector = NewType("Vector", object)  # a float32 weight
Float32 = NDArray[np.float32]

__all__ = ["BLOCK_SIZE", "Matrix", "Ops", "RawTensor", "Rope", "SampleRows", "Value", "Vector"]


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it lies in the model file. `data` is a read-only view of the mapped file, valid while that is open.

    `type` is a GGML type name (`F32`, `F16`, `BF16`, `Q4_0`, `Q4_1`, `Q8_0`, ...); `shape` is (rows, columns) or (length,): a
    linear's weight has one row an output, and K = columns is the dimension that is summed over.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of pairs (i, i + rotary_dim / 2) (`neox`) or (2 i, 2 i + 1). `inv_freq`: float64, rotary_dim / 2."""

    inv_freq: NDArray[np.float64]
    neox: bool


@dataclass(frozen=True)
class SampleRows:
    """How each of R rows is drawn; every array has R entries.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. The draw is keyed by (seed, position, token id).
    """

    temperature: Float32
    top_k: NDArray[np.int32]
    top_p: Float32
    min_p: Float32
    seed: NDArray[np.uint64]
    position: NDArray[np.int32]  # of the token to be drawn, absolute


class Ops(Protocol):
    """One device's ops. `name` and `remedy` are shown to people: which ops run, and what would make them faster. Ops of one
    `kind` give equal bits on one type of machine, whatever their threads."""

    name: str
    remedy: str
    kind: str

    # weights and cache, once

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        """A linear's weight; several parts are one linear whose outputs lie side by side (query, key, value)."""
        ...

    def vector(self, tensor: RawTensor) -> Vector: ...

    def allocate_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> int:
        """Paged KV of float16, zeroed; replaces what was held. Returns bytes."""
        ...

    def bytes_per_block(self, layers: int, kv_heads: int, head_dim: int) -> int: ...

    def use_logits_buffer(self, buffer: Float32) -> None:
        """Logits go to `buffer` from now on: float32, contiguous, (the most rows of a step that want logits, V)."""
        ...

    # a forward

    def run(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> Float32:
        """Runs one step; `forward` returns the head's logits. The (R, V) array is valid until the next run."""
        ...

    def embed(self, table: Matrix) -> Value:
        """N E: rows of `table` at the step's token ids."""
        ...

    def rms_norm(self, x: Value, weight: Vector, eps: float) -> Value:
        """N E: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""
        ...

    def add(self, x: Value, y: Value) -> Value: ...

    def linear(self, x: Value, weight: Matrix) -> Value:
        """N O: x @ weight.T, every output summed over K in one order."""
        ...

    def rope_kv_write(self, qkv: Value, layer: int, heads: int, kv_heads: int, head_dim: int, rope: Rope) -> Value:
        """Rotates the queries and keys of `qkv` (N, (H + 2 K) D) by position, writes keys and values to the cache, and
        returns the queries (N, H D)."""
        ...

    def attention(self, q: Value, layer: int, heads: int, kv_heads: int, head_dim: int) -> Value:
        """N, H D: causal softmax(q k / sqrt(D)) v over positions 0 .. own, in fixed blocks from position 0."""
        ...

    def silu_mul(self, gate_up: Value) -> Value:
        """N I: silu(gate) * up, from (N, 2 I) holding gate then up."""
        ...

    def gather_logit_rows(self, x: Value) -> Value:
        """R E: the rows that want logits."""
        ...

    # sampling

    def sample(self, logits: Float32, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
        """Draws a token a row from (R, V) logits. Ties go to the lowest id. Where a row cannot be drawn (a NaN, no finite
        value) its id is -1 and its entry of the second list says why; it is empty otherwise."""
        ...
