"""Gated DeltaNet in NumPy (Yang et al. 2024, "Gated Delta Networks"): the oracle of the native ops, and the reference's own.

Each function takes one sequence's rows in order and goes token by token, so that its state is a function of the tokens alone,
however they were cut into steps. Dims: n rows, C channels of the convolution, Hk key heads, Hv value heads, Dk and Dv their dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from workers.ops.protocol import RecurrentShape

Float32 = NDArray[np.float32]

LENGTH_EPS = np.float32(1e-6)


@dataclass
class States:
    """What recurrent layers hold, by slot: `past` (slots, L, kernel - 1, C), `matrices` (slots, L, Hv, Dk, Dv)."""

    shape: RecurrentShape
    past: Float32
    matrices: Float32

    @classmethod
    def zeros(cls, shape: RecurrentShape, slots: int) -> States:
        matrix = (shape.value_heads, shape.key_dim, shape.value_dim)
        return cls(
            shape,
            np.zeros((slots, shape.layers, shape.kernel - 1, shape.channels), np.float32),
            np.zeros((slots, shape.layers, *matrix), np.float32),
        )

    @property
    def nbytes(self) -> int:
        return self.past.nbytes + self.matrices.nbytes

    def copy(self, source: int, target: int) -> None:
        self.past[target] = self.past[source]
        self.matrices[target] = self.matrices[source]


def sigmoid(x: Float32) -> Float32:
    with np.errstate(over="ignore"):
        return cast(Float32, 1 / (1 + np.exp(-x)))


def convolve(x: Float32, weight: Float32, past: Float32) -> Float32:
    """silu of a causal depthwise convolution of x (n, C) with `weight` (kernel, C), the tap of the oldest input first. `past`
    (kernel - 1, C) holds the inputs before x, and in the end those before the next."""
    rows = np.concatenate([past, x])
    total: Float32 = np.zeros_like(x)
    for tap, of_channels in enumerate(weight):
        total += of_channels * rows[tap : tap + len(x)]
    past[...] = rows[len(x) :]
    return total * sigmoid(total)


def gates(ba: Float32, decay: Float32, dt_bias: Float32) -> Float32:
    """(n, 2 Hv): beta = sigmoid(b), then g = decay * softplus(a + dt_bias), of rows that hold b then a; decay = -exp(A_log)."""
    b, a = np.split(ba, 2, axis=-1)
    return np.concatenate([sigmoid(b), decay * np.logaddexp(np.float32(0), a + dt_bias)], axis=-1)


def delta_rule(qkv: Float32, gates: Float32, shape: RecurrentShape, matrices: Float32) -> Float32:
    """(n, Hv Dv). With S a head's matrix (Dk, Dv) and q, k of unit length, a token is

        S = exp(g) S;  S += k (beta (v - k S));  out = q S / sqrt(Dk).

    `matrices` (Hv, Dk, Dv) is moved on."""
    count, keys = len(qkv), shape.key_heads * shape.key_dim
    heads = (count, shape.key_heads, shape.key_dim)
    of_value_head = shape.key_head_of_value_heads()
    query = _unit_length(qkv[:, :keys].reshape(heads))[:, of_value_head] * np.float32(shape.key_dim**-0.5)
    key = _unit_length(qkv[:, keys : 2 * keys].reshape(heads))[:, of_value_head]
    value = qkv[:, 2 * keys :].reshape(count, shape.value_heads, shape.value_dim)
    beta, decay = gates[:, : shape.value_heads, None], np.exp(gates[:, shape.value_heads :, None, None])
    out = np.empty_like(value)
    for row in range(count):
        matrices *= decay[row]
        held = np.add.reduce(matrices * key[row, :, :, None], axis=1)
        change = (value[row] - held) * beta[row]
        matrices += key[row, :, :, None] * change[:, None, :]
        out[row] = np.add.reduce(matrices * query[row, :, :, None], axis=1)
    return out.reshape(count, -1)


def _unit_length(x: Float32) -> Float32:
    return cast(Float32, x / np.sqrt(np.add.reduce(x * x, axis=-1, keepdims=True) + LENGTH_EPS))


def gated_norm(x: Float32, gate: Float32, weight: Float32, eps: float) -> Float32:
    """norm(x) * weight * silu(gate) by heads of len(weight) columns, x and gate (n, H D)."""
    heads = x.reshape(len(x), -1, len(weight))
    mean = np.add.reduce(heads * heads, axis=-1, keepdims=True) / np.float32(len(weight))
    normed = (heads / np.sqrt(mean + np.float32(eps)) * weight).reshape(x.shape)
    out: Float32 = normed * (gate * sigmoid(gate))
    return out
