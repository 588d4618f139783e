"""The native ops of recurrent layers: their state, and what they add to a step program."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from workers.ops.native import library as lib
from workers.ops.native.memory import address_of, mapped_zeros
from workers.ops.native.program import Op, PackedVector, Rows
from workers.ops.protocol import RecurrentShape, Value, Vector

MAX_KEY_DIM = 256


class RecurrentOps:
    """Part of NativeOps; see the recurrent layers' ops in workers/ops/protocol.py."""

    _library: Any
    _engine: ctypes.c_void_p
    _states: NDArray[np.uint8] | None = None  # a row a slot
    _recurrent: RecurrentShape | None = None

    def _emit(self, op: Op) -> Value:
        raise NotImplementedError

    def bytes_per_state(self, shape: RecurrentShape) -> int:
        return int(self._library.helexa_state_bytes(_c_state(shape, 0, None)))

    def allocate_state(self, shape: RecurrentShape, slots: int) -> int:
        """See Ops.allocate_state. ModelFileError for a shape that does not fit."""
        if shape.key_dim > MAX_KEY_DIM:
            raise ModelFileError(f"key heads of {shape.key_dim} are wider than the native ops' {MAX_KEY_DIM}")
        per_slot = self.bytes_per_state(shape)
        self._states = None  # what was held goes first
        self._states = mapped_zeros(slots * per_slot).reshape(slots, per_slot)
        self._recurrent = shape
        self._library.helexa_engine_set_state(self._engine, _c_state(shape, slots, address_of(self._states)))
        return self._states.nbytes

    def copy_state(self, source: int, target: int) -> None:
        assert self._states is not None, "allocate_state comes first"
        self._states[target] = self._states[source]

    def causal_conv_update(self, x: Value, weight: Vector, layer: int) -> Value:
        rows = cast(Rows, x)
        return self._emit(Op(lib.CAUSAL_CONV, Rows(rows.width, False), rows, vector=_vector(weight), layer=layer))

    def gdn_gating(self, ba: Value, decay: Vector, dt_bias: Vector) -> Value:
        rows = cast(Rows, ba)
        op = Op(lib.GDN_GATES, Rows(rows.width, rows.on_logit_rows), rows, vector=_vector(decay), vector2=_vector(dt_bias))
        return self._emit(op)

    def recurrent_update(self, qkv: Value, gates: Value, layer: int) -> Value:
        shape = self._recurrent
        assert shape is not None, "allocate_state comes first"
        rows, gate_rows = cast(Rows, qkv), cast(Rows, gates)
        assert rows.width == shape.channels and gate_rows.width == 2 * shape.value_heads, "rows of another shape"
        return self._emit(Op(lib.DELTA_RULE, Rows(shape.value_heads * shape.value_dim, False), rows, gate_rows, layer=layer))

    def gated_rms_norm(self, x: Value, gate: Value, weight: Vector, eps: float) -> Value:
        rows, vector = cast(Rows, x), _vector(weight)
        out, head_dim = Rows(rows.width, rows.on_logit_rows), len(vector.values)
        return self._emit(Op(lib.GATED_NORM, out, rows, cast(Rows, gate), vector=vector, eps=eps, head_dim=head_dim))

    def sigmoid_mul(self, x: Value, gate: Value) -> Value:
        rows, gate_rows = cast(Rows, x), cast(Rows, gate)
        assert gate_rows.width in (1, rows.width), "a gate is one column, or as wide as what it gates"
        return self._emit(Op(lib.SIGMOID_MUL, Rows(rows.width, rows.on_logit_rows), rows, gate_rows, heads=gate_rows.width))


def _vector(vector: Vector) -> PackedVector:
    return cast(PackedVector, vector)


def _c_state(shape: RecurrentShape, slots: int, data: int | None) -> lib.CState:
    return lib.CState(
        data,
        slots,
        shape.layers,
        shape.key_heads,
        shape.value_heads,
        shape.key_dim,
        shape.value_dim,
        shape.kernel,
        int(shape.tiled),
    )
