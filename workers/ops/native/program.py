"""A forward as a flat step program: recorded once on symbolic rows, fused, given memory, and run in one call for any N."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from workers.group import pieces_of
from workers.ops.native import library as lib
from workers.ops.native.memory import ALIGNMENT, address_of, aligned_empty
from workers.ops.protocol import Expert, Parts

# Kinds that can quantise the row they have just computed.
QUANTISING = frozenset(
    {
        lib.RMS_NORM,
        lib.ADD,
        lib.ATTENTION,
        lib.SILU_MUL,
        lib.GELU_MUL,
        lib.GATHER,
        lib.ALL_GATHER,
        lib.LINEAR_SILU,
        lib.LINEAR_GELU,
        lib.GATED_NORM,
        lib.SIGMOID_MUL,
    }
)

GATED = {lib.SILU_MUL: lib.LINEAR_SILU, lib.GELU_MUL: lib.LINEAR_GELU}  # what a linear of gate and up becomes with one behind it
LINEARS = frozenset({lib.LINEAR, *GATED.values()})
IN_PLACE = frozenset({lib.SCALE, lib.SOFT_CAP, lib.NORM_HEADS})  # kinds that may write over what they read


@dataclass(eq=False)
class Rows:
    """An activation: N rows, or R of those that want logits."""

    width: int
    on_logit_rows: bool


@dataclass(eq=False)
class PackedMatrix:
    """A linear's weight as the library wants it."""

    inputs: int
    outputs: int
    has_floats: bool
    has_quantised: bool
    linear: lib.CLinear
    keep: list[object]  # what `linear` points to

    @property
    def has_two_sides(self) -> bool:
        widths = [self.linear.segments[index].rows for index in range(self.linear.segment_count)]
        return len(widths) == 2 and widths[0] == widths[1] and widths[0] % 32 == 0


@dataclass(eq=False)
class PackedVector:
    values: NDArray[np.float32]


@dataclass(eq=False)
class RopeTable:
    rope: lib.CRope
    keep: list[object]
    scale: float = 1.0


@dataclass(eq=False)
class PackedExperts:
    experts: lib.CExperts
    keep: list[object]  # what `experts` points to


@dataclass(eq=False)
class PackedPieces:
    pieces: lib.CPieces
    keep: list[object]  # what `pieces` points to

    @property
    def pointer(self) -> object:
        return ctypes.pointer(self.pieces)


def packed_pieces(parts: Parts, rank: int) -> PackedPieces:
    """The library's form of the columns that a rank holds of rows which are gathered."""
    pieces = pieces_of(parts, rank)
    starts, widths = ((ctypes.c_int32 * len(pieces))(*column) for column in zip(*pieces, strict=True))
    return PackedPieces(lib.CPieces(sum(map(sum, parts)), len(pieces), starts, widths), [starts, widths])


def packed_experts(experts: Sequence[Expert], top_k: int, normalise: bool, hidden: PackedPieces | None = None) -> PackedExperts:
    """The library's form. Its experts share one shape. `hidden`: as in Ops.moe_ffn, of this rank."""
    sides = [[cast(PackedMatrix, getattr(expert, side)) for expert in experts] for side in ("gate_up", "down")]
    for side in sides:
        assert len({(matrix.inputs, matrix.outputs) for matrix in side}) == 1, "the experts of a mixture are of one shape"
    gate_up, down = ((lib.CLinear * len(experts))(*(matrix.linear for matrix in side)) for side in sides)
    pointer = hidden.pointer if hidden else None
    packed = lib.CExperts(len(experts), top_k, int(normalise), gate_up, down, pointer)
    return PackedExperts(packed, [gate_up, down, sides, hidden])


@dataclass(frozen=True)
class Op:
    """One op on activations. A norm with two inputs leaves their sum in `sum`. `quantise`: the output's integers are wanted."""

    kind: int
    out: Rows
    x: Rows | None = None
    y: Rows | None = None
    sum: Rows | None = None
    matrix: PackedMatrix | None = None
    vector: PackedVector | None = None
    vector2: PackedVector | None = None
    table: RopeTable | None = None
    experts: PackedExperts | None = None
    pieces: PackedPieces | None = None
    first_id: int = 0
    eps: float = 0.0
    scale: float = 0.0
    soft_cap: float = 0.0
    window: int = 0
    layer: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    quantise: bool = False

    @property
    def reads_quantised(self) -> bool:
        return self.kind in LINEARS and self.matrix is not None and self.matrix.has_quantised

    @property
    def has_two_sides(self) -> bool:
        """A linear of gate and up whose outputs can be joined 32 columns at a time."""
        return self.kind == lib.LINEAR and self.matrix is not None and self.matrix.has_two_sides and self.vector is None

    def float_inputs(self) -> list[Rows]:
        if self.kind in LINEARS and self.matrix is not None and not self.matrix.has_floats:
            return []
        return [rows for rows in (self.x, self.y) if rows is not None]


def fill(
    op: Op, floats: Callable[[Rows | None], int | None], quantised: Callable[[Rows | None], int | None], float_out: bool = True
) -> lib.COp:
    """The library's form of an op, with the addresses of its rows."""
    return lib.COp(
        kind=op.kind,
        on_logit_rows=int(op.out.on_logit_rows),
        width=op.out.width,
        layer=op.layer,
        heads=op.heads,
        kv_heads=op.kv_heads,
        head_dim=op.head_dim,
        eps=op.eps,
        x=floats(op.x),
        y=floats(op.y),
        sum=floats(op.sum),
        out=floats(op.out) if float_out else None,
        quantised_x=quantised(op.x) if op.reads_quantised else None,
        quantised_out=quantised(op.out) if op.quantise else None,
        vector=address_of(op.vector.values) if op.vector else None,
        vector2=address_of(op.vector2.values) if op.vector2 else None,
        linear=ctypes.pointer(op.matrix.linear) if op.matrix else None,
        rope=ctypes.pointer(op.table.rope) if op.table else None,
        scale=op.scale,
        soft_cap=op.soft_cap,
        window=op.window,
        experts=ctypes.pointer(op.experts.experts) if op.experts else None,
        pieces=op.pieces.pointer if op.pieces else None,
        first_id=op.first_id,
    )


def fuse(ops: list[Op]) -> list[Op]:
    """Joins add + norm and linear + silu_mul or gelu_mul, lets some work in place, and producers quantise what linears read.

    The arithmetic and its order stay; the passes over memory are fewer.
    """
    fused: list[Op] = []
    readers = Counter(rows for op in ops for rows in (op.x, op.y) if rows is not None)
    for op in ops:
        last = fused[-1] if fused else None
        if op.kind == lib.RMS_NORM and last is not None and last.kind == lib.ADD and op.x is last.out:
            fused[-1] = replace(op, x=last.x, y=last.y, sum=last.out)
        elif last is None or op.x is not last.out or readers[last.out] != 1:
            fused.append(op)
        elif op.kind in GATED and last.has_two_sides:
            fused[-1] = replace(last, kind=GATED[op.kind], out=op.out)
        elif op.kind in IN_PLACE and last.kind in (lib.EMBED, lib.LINEAR):
            fused[-1:] = [replace(last, out=op.out), replace(op, x=op.out)]
        else:
            fused.append(op)
    wanted = {op.x for op in fused if op.reads_quantised and op.x is not None}
    result: list[Op] = []
    for op in fused:
        if op.out in wanted and op.kind in QUANTISING:
            result.append(replace(op, quantise=True))
            continue
        result.append(op)
        made = [rows for rows in (op.out, op.sum) if rows is not None and rows in wanted]
        result.extend(Op(lib.QUANTISE, rows, x=rows, quantise=True) for rows in made)
    return result


class _Layout:
    """Offsets for buffers that live from one op to another: first fit, lowest address."""

    def __init__(self) -> None:
        self.size = 0
        self._live: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        nbytes = max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
        offset = 0
        for start, end in sorted(self._live):
            if start - offset >= nbytes:
                break
            offset = max(offset, end)
        self._live.append((offset, offset + nbytes))
        self.size = max(self.size, offset + nbytes)
        return offset

    def give_back(self, offset: int) -> None:
        self._live = [(start, end) for start, end in self._live if start != offset]


@dataclass
class _Places:
    floats: dict[Rows, int] = field(default_factory=dict)
    quantised: dict[Rows, int] = field(default_factory=dict)


class Program:
    """A recorded forward with its memory. `result` is where the forward's value goes, outside that memory."""

    def __init__(self, ops: list[Op], result: Rows, result_address: int, capacity: int, logit_capacity: int) -> None:
        self.ops = fuse(ops)
        self.tables = [op.table for op in ops if op.table is not None]
        self._needs_floats = {rows for op in self.ops for rows in op.float_inputs()} | {result}
        self._capacity, self._logit_capacity = capacity, logit_capacity
        layout = _Layout()
        places = self._place(layout, result)
        self.memory = aligned_empty(layout.size)
        base = address_of(self.memory)

        def address(table: dict[Rows, int]) -> Callable[[Rows | None], int | None]:
            return lambda rows: base + table[rows] if rows in table else None

        def floats(rows: Rows | None) -> int | None:
            return result_address if rows is result else address(places.floats)(rows)

        filled = [fill(op, floats, address(places.quantised), self._stores_floats(op)) for op in self.ops]
        self.array = (lib.COp * len(filled))(*filled)

    def _stores_floats(self, op: Op) -> bool:
        return op.kind != lib.QUANTISE and (op.kind == lib.ATTENTION or not op.quantise or op.out in self._needs_floats)

    def _place(self, layout: _Layout, result: Rows) -> _Places:
        last_use: dict[Rows, int] = {}
        for index, op in enumerate(self.ops):
            for rows in (op.x, op.y, op.out, op.sum):
                if rows is not None:
                    last_use[rows] = index
        places = _Places()
        for index, op in enumerate(self.ops):
            written = [op.out] if self._stores_floats(op) else []
            for rows in [*written, *([op.sum] if op.sum else [])]:
                if rows is not result and rows not in places.floats:
                    places.floats[rows] = layout.take(4 * rows.width * self._rows(rows))
            if op.quantise and op.out not in places.quantised:
                places.quantised[op.out] = layout.take(quantised_bytes(self._rows(op.out), op.out.width))
            for rows, last in last_use.items():
                if last == index:
                    for table in (places.floats, places.quantised):
                        if rows in table:
                            layout.give_back(table[rows])
        return places

    def _rows(self, rows: Rows) -> int:
        return self._logit_capacity if rows.on_logit_rows else self._capacity


def quantised_bytes(rows: int, width: int) -> int:
    """Bytes of `rows` rows of quantised activations with their scales."""
    return int(lib.native_library().helexa_quantised_bytes(rows, width))
