"""The ops protocol: all that a model's forward may use.

A forward is Python over ops on opaque `Value`s: no operators, no slicing, no branch on the number of rows. So an implementation
may compute at once, or record the calls and replay them for any N. Shapes are in the dims of the glossary: N new tokens,
B sequences, R logit rows, H heads, K KV heads, D head dim, V vocab, L layers, S block size; E is the hidden width, X experts.

The law (X1): a row's bits depend only on that row, its sequence's KV and the weights: never on N, B, the other rows, the
row's place, the number of threads, or how many ranks hold the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NewType, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from workers.group import Group, Parts
from workers.inputs import BLOCK_SIZE, StepInputs

Value = NewType("Value", object)  # an activation, rows first
Matrix = NewType("Matrix", object)  # a weight of a linear, packed as the ops like
Vector = NewType("Vector", object)  # a float32 weight
Float32 = NDArray[np.float32]

__all__ = [
    "BLOCK_SIZE",
    "Expert",
    "Group",
    "HeldLogits",
    "Logits",
    "Matrix",
    "Ops",
    "Parts",
    "RawTensor",
    "RecurrentShape",
    "Rope",
    "SampleRows",
    "Value",
    "Vector",
]


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
    """Rotary embedding of pairs (i, i + rotary_dim / 2) (`neox`) or (2 i, 2 i + 1). `inv_freq`: float64, rotary_dim / 2; columns
    past rotary_dim stay as they are, so an empty one rotates nothing. `scale` multiplies the rotated columns (YaRN's)."""

    inv_freq: NDArray[np.float64]
    neox: bool
    scale: float = 1.0


@dataclass(frozen=True)
class Expert:
    """One expert of a mixture: (2 I, E), gate then up, and (E, I); of a rank's shard, some rows of either."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class RecurrentShape:
    """What Gated DeltaNet layers (Yang et al. 2024) hold of a sequence in place of KV, however long it is.

    Of each layer: the last `kernel` - 1 inputs of a convolution over `channels` (queries, keys, values), and a `key_dim` x
    `value_dim` matrix a value head. Value head h reads key head h // (value_heads / key_heads) or, `tiled`, h % key_heads.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    tiled: bool = False

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def key_head_of_value_heads(self) -> NDArray[np.intp]:
        heads = np.arange(self.value_heads)
        return heads % self.key_heads if self.tiled else heads // (self.value_heads // self.key_heads)


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


class HeldLogits(Protocol):
    """(R, V) logits that stay on their device, used as an array's rows are: a row comes to the host when it is asked for, and is drawn
    from as it is left there. `np.asarray` brings all."""

    @property
    def shape(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Float32]: ...
    @overload
    def __getitem__(self, rows: int) -> Float32: ...
    @overload
    def __getitem__(self, rows: slice | list[int]) -> HeldLogits: ...
    def __setitem__(self, row: int, value: float) -> None: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...


Logits: TypeAlias = Float32 | HeldLogits


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

    def bytes_per_state(self, shape: RecurrentShape) -> int: ...

    def allocate_state(self, shape: RecurrentShape, slots: int) -> int:
        """Recurrent state of `slots` sequences; replaces what was held. Returns bytes."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """One slot's state to another, bit for bit."""
        ...

    def use_logits_buffer(self, buffer: Float32) -> None:
        """Logits, or those that come to the host, go to `buffer` from now on: float32, contiguous, (the most rows of a step that
        want logits, V)."""
        ...

    def use_group(self, group: Group | None) -> None:
        """The ranks that the ops between ranks meet from now on."""
        ...

    # a forward

    def run(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> Logits:
        """Runs one step; `forward` returns the head's logits (R, V), which are valid until the next run; a rank behind rank 0 gets
        none. GroupLeft where another rank gave the step up."""
        ...

    def embed(self, table: Matrix) -> Value:
        """N E: rows of `table` at the step's token ids."""
        ...

    def rms_norm(self, x: Value, weight: Vector, eps: float) -> Value:
        """N E: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""
        ...

    def add(self, x: Value, y: Value) -> Value: ...

    def scale(self, x: Value, factor: float) -> Value:
        """N E: x * factor, the factor rounded to float32."""
        ...

    def soft_cap(self, x: Value, cap: float) -> Value:
        """N E: cap * tanh(x / cap) (Gemma 2, 2024); what is not finite stays so."""
        ...

    def linear(self, x: Value, weight: Matrix, bias: Vector | None = None) -> Value:
        """N O: x @ weight.T (+ bias), every output summed over K in one order, the bias last."""
        ...

    def norm_heads(
        self, qkv: Value, q_weight: Vector, k_weight: Vector, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> Value:
        """`qkv` (N, (H + 2 K) D) with rms_norm on each query head and each key head by itself; values stay. Weights: D."""
        ...

    def rope_kv_write(self, qkv: Value, layer: int, heads: int, kv_heads: int, head_dim: int, rope: Rope) -> Value:
        """Rotates the queries and keys of `qkv` (N, (H + 2 K) D) by position, writes keys and values to the cache, and
        returns the queries (N, H D)."""
        ...

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
        """N, H D: causal softmax(scale q k) v over positions 0 .. own, in fixed blocks from position 0.

        `scale` is 1 / sqrt(D) by default. `window`: only the last so many positions, own included; 0 is all. `soft_cap`: scores
        become soft_cap * tanh(score / soft_cap) before the softmax; 0 is none.
        """
        ...

    def silu_mul(self, gate_up: Value) -> Value:
        """N I: silu(gate) * up, from (N, 2 I) holding gate then up."""
        ...

    def gelu_tanh_mul(self, gate_up: Value) -> Value:
        """N I: gelu(gate) * up, from (N, 2 I) holding gate then up; gelu by its tanh form (Hendrycks and Gimpel 2016)."""
        ...

    def moe_ffn(
        self,
        x: Value,
        scores: Value,
        experts: Sequence[Expert],
        top_k: int,
        normalise: bool,
        hidden: Sequence[int] = (),
    ) -> Value:
        """N E: the sum of w down(silu(gate(x)) * up(x)) over the `top_k` experts of the highest `scores` (N X), from the highest
        down, the lowest expert first among equals (Shazeer et al. 2017). w is softmax(scores), over all experts or, to `normalise`,
        over the chosen ones. `hidden`: how many of the columns between the two linears each rank makes; they are gathered, and the
        result has the columns of this rank's `down`. Empty: all are made here."""
        ...

    def gather_logit_rows(self, x: Value) -> Value:
        """R E: the rows that want logits."""
        ...

    # between ranks: each meets all others, which run the same op. Nothing is summed, so bits are those of one rank alone

    def all_gather(self, x: Value, parts: Parts) -> Value:
        """Whole rows, from those columns that each rank has in its `x`. `parts`: of each part that lies side by side in a whole row,
        how many columns each rank has; a rank's `x` has its share of each part, side by side."""
        ...

    def embed_across(self, table: Matrix, first_id: int) -> Value:
        """As `embed`, where `table` holds the rows from token id `first_id` on, and other ranks hold the others."""
        ...

    def gather_logits(self, x: Value, widths: Sequence[int]) -> Value:
        """R V, on rank 0 alone, in its logits buffer: whole rows of `widths` columns each rank. The last op of a forward."""
        ...

    # recurrent layers: `layer` counts these alone. A sequence moves its slot's state on, from zeros where its first row is position
    # 0; token by token with one arithmetic, so that prompts, decoding and draft checks of any cut agree bit for bit

    def causal_conv_update(self, x: Value, weight: Vector, layer: int) -> Value:
        """N C: silu of a causal depthwise convolution; `weight` is (kernel, C), the oldest input's tap first."""
        ...

    def gdn_gating(self, ba: Value, decay: Vector, dt_bias: Vector) -> Value:
        """N, 2 Hv: beta = sigmoid(b), then g = decay * softplus(a + dt_bias), of rows that hold b then a."""
        ...

    def recurrent_update(self, qkv: Value, gates: Value, layer: int) -> Value:
        """N, Hv Dv: the gated delta rule (workers/ops/recurrent.py) with queries and keys of unit length."""
        ...

    def gated_rms_norm(self, x: Value, gate: Value, weight: Vector, eps: float) -> Value:
        """norm(x) * weight * silu(gate), by heads as wide as `weight`."""
        ...

    def sigmoid_mul(self, x: Value, gate: Value) -> Value:
        """x * sigmoid(gate); a gate of one column is for all columns of x."""
        ...

    # sampling

    def sample(self, logits: Logits, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
        """Draws a token a row from (R, V) logits: an array, or what `run` gave or a part of it. Ties go to the lowest id. Where a
        row cannot be drawn (a NaN, no finite value) its id is -1 and its entry of the second list says why; it is empty otherwise."""
        ...
