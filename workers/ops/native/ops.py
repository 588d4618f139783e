"""The native ops: the ops protocol over the C++ library. See docs/native-ops.md."""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError, StartError
from helexa.formats.ggml_types import row_bytes
from workers.group import GroupLeft
from workers.inputs import StepInputs
from workers.ops.native import library as lib
from workers.ops.native.group_ops import GroupOps
from workers.ops.native.memory import Arena, address_of, aligned_empty, drop_mapped_pages, mapped_zeros, want_mapped_pages
from workers.ops.native.program import (
    Op,
    PackedMatrix,
    PackedVector,
    Program,
    RopeTable,
    Rows,
    fill,
    packed_experts,
    quantised_bytes,
)
from workers.ops.native.recurrent_ops import RecurrentOps
from workers.ops.protocol import Expert, Float32, Logits, Matrix, Ops, RawTensor, Rope, SampleRows, Value, Vector
from workers.ops.sampling import explain

SPINS = 2000  # rounds a thread without work looks for some before it sleeps
MAX_PROGRAMS = 4
GROUP_ROWS = 16  # rows of a weight that are packed together
PACK_BYTES = 4 << 20  # of a weight, that a thread packs at a time
MAX_HEAD_DIM = 256
ROPE_PIECE = 1024  # positions a rotary table grows by: pieces of one shape, so a position's bits never change

Forward = Callable[[Ops], Value]


class _Emitter(Protocol):
    def emit(self, op: Op) -> Rows: ...


class _Recorder:
    """Notes the ops of a forward, running nothing."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def emit(self, op: Op) -> Rows:
        self.ops.append(op)
        return op.out


class _Direct:
    """Runs each op at once, on memory that lives as long as its value is referred to."""

    def __init__(self, run: Callable[[ctypes.Array[lib.COp]], None], rows: int, logit_rows: int) -> None:
        self._run, self._rows, self._logit_rows = run, rows, logit_rows
        self._floats: weakref.WeakKeyDictionary[Rows, NDArray[np.uint8]] = weakref.WeakKeyDictionary()

    def _count(self, rows: Rows) -> int:
        return self._logit_rows if rows.on_logit_rows else self._rows

    def _floats_of(self, rows: Rows | None) -> int | None:
        return None if rows is None else address_of(self._floats[rows])

    def emit(self, op: Op) -> Rows:
        self._floats[op.out] = aligned_empty(4 * op.out.width * self._count(op.out))
        quantised: NDArray[np.uint8] | None = None
        if op.reads_quantised:
            assert op.x is not None
            quantised = aligned_empty(quantised_bytes(self._count(op.x), op.x.width))
            self._execute(Op(lib.QUANTISE, op.x, x=op.x, quantise=True), quantised)
        self._execute(op, quantised)
        return op.out

    def _execute(self, op: Op, quantised: NDArray[np.uint8] | None) -> None:
        where = None if quantised is None else address_of(quantised)
        self._run((lib.COp * 1)(fill(op, self._floats_of, lambda _rows: where)))

    def result(self, rows: Rows, out: Float32) -> None:
        out[:] = self._floats[rows].view(np.float32).reshape(out.shape)


def available() -> str | None:
    """Why the native ops cannot be used, with the remedy; None if they are built. A stale library is an error of NativeOps."""
    return lib.why_missing()


class NativeOps(RecurrentOps, GroupOps):
    """Ops on this machine's CPU; implements `Ops`.

    threads: how many threads work, the caller's among them. max_step_tokens: N of the largest step a program is made for; a
    larger one runs op by op. seats: R, the most logit rows of a step. isa: an instruction set of `instruction_sets()`, the best
    by default. direct: never record. Each gives the same bits.

    `captures` counts forwards recorded, `replays` steps run from a program, `fallbacks` steps too large for theirs.
    """

    kind = "native"
    remedy = ""

    def __init__(
        self,
        threads: int,
        max_step_tokens: int,
        seats: int = 64,
        isa: str | None = None,
        direct: bool = False,
        spins: int = SPINS,
    ) -> None:
        self._library = lib.native_library()
        self.isa = isa or lib.instruction_sets()[0]
        if self.isa not in lib.instruction_sets():
            raise StartError(f"this machine cannot run the {self.isa} ops: it can run {', '.join(lib.instruction_sets())}")
        self.threads, self.max_step_tokens, self.seats, self.direct = threads, max_step_tokens, seats, direct
        self.name = f"native ({self.isa}, {threads} thread{'s' if threads > 1 else ''})"
        self.captures = self.replays = self.fallbacks = 0
        engine = self._library.helexa_engine_new(self.isa.encode(), threads, spins)
        if not engine:
            raise StartError(f"the native ops could not start {threads} threads: lower `threads` or raise the process limit")
        self._engine = ctypes.c_void_p(engine)
        self._close = weakref.finalize(self, self._library.helexa_engine_free, self._engine)
        self._arena = Arena()
        self._packers = ThreadPoolExecutor(threads, "pack")
        self._kv: NDArray[np.uint8] | None = None
        self._logits: Float32 | None = None
        self._programs: OrderedDict[Forward, Program] = OrderedDict()
        self._ropes: dict[tuple[bytes, bool, float], RopeTable] = {}
        self._emitter: _Emitter | None = None

    # weights and cache

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights."""
        return self._arena.used_bytes

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        """See Ops.matrix. Packs each part and lets go of the mapped pages it was read from. ModelFileError for a type or shape
        that cannot be packed."""
        columns = parts[0].shape[-1]
        segments = (lib.CSegment * len(parts))()
        for segment, part in zip(segments, parts, strict=True):
            if len(part.shape) != 2 or part.shape[1] != columns:
                raise ModelFileError(f"tensor {part.name} has shape {part.shape}, but its linear takes {columns} columns")
            segment.type, segment.rows, segment.data = self._pack(part)
        outputs = sum(part.shape[0] for part in parts)
        quantised = [part.type in lib.QUANTISED_TYPES for part in parts]
        linear = lib.CLinear(columns, outputs, len(parts), segments)
        return cast(Matrix, PackedMatrix(columns, outputs, not all(quantised), any(quantised), linear, [segments]))

    def _pack(self, part: RawTensor) -> tuple[int, int, int]:
        if part.type not in lib.TYPES:
            raise ModelFileError(f"tensor {part.name} is {part.type}, but the native ops read only {', '.join(lib.TYPES)}")
        rows, columns = part.shape
        kind = lib.TYPES[part.type]
        nbytes = int(self._library.helexa_packed_bytes(kind, rows, columns))
        source = np.ascontiguousarray(part.data).reshape(-1)
        if nbytes == 0 or source.nbytes != rows * row_bytes(part.type, columns):
            raise ModelFileError(
                f"tensor {part.name} ({part.type}, shape {part.shape}) has {source.nbytes} bytes, which do not fit"
            )
        packed = self._arena.take(nbytes)
        source_row = source.nbytes // rows
        packed_group = nbytes // -(-rows // GROUP_ROWS)
        together = max(1, PACK_BYTES // (source_row * GROUP_ROWS)) * GROUP_ROWS

        def pack(first: int) -> None:
            count = min(together, rows - first)
            chunk = source[first * source_row : (first + count) * source_row]
            to = address_of(packed) + first // GROUP_ROWS * packed_group
            self._library.helexa_pack(kind, count, columns, address_of(chunk), to)
            drop_mapped_pages(chunk)

        want_mapped_pages(source)
        list(self._packers.map(pack, range(0, rows, together)))
        return kind, rows, address_of(packed)

    def vector(self, tensor: RawTensor) -> Vector:
        """See Ops.vector. ModelFileError for a quantised one."""
        raw = np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8)
        if tensor.type == "F32":
            values = raw.view(np.float32).copy()
        elif tensor.type == "F16":
            values = raw.view(np.float16).astype(np.float32)
        elif tensor.type == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            raise ModelFileError(f"tensor {tensor.name} is {tensor.type}, but a vector must be F32, F16 or BF16")
        return cast(Vector, PackedVector(values))

    def bytes_per_block(self, layers: int, kv_heads: int, head_dim: int) -> int:
        return layers * int(self._library.helexa_kv_block_bytes(kv_heads, head_dim))

    def allocate_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> int:
        """See Ops.allocate_kv. ModelFileError for a head that is too wide."""
        if head_dim > MAX_HEAD_DIM:
            raise ModelFileError(f"heads of {head_dim} are wider than the native ops' {MAX_HEAD_DIM}")
        nbytes = blocks * self.bytes_per_block(layers, kv_heads, head_dim)
        self._kv = None  # what was held goes first
        self._kv = mapped_zeros(nbytes)
        self._library.helexa_engine_set_kv(self._engine, lib.CKv(address_of(self._kv), layers, blocks, kv_heads, head_dim))
        return nbytes

    def use_logits_buffer(self, buffer: Float32) -> None:
        """Logits go to `buffer` from now on: float32, contiguous, (at least `seats`, V); shared memory, say."""
        if buffer.dtype != np.float32 or not buffer.flags.c_contiguous or buffer.ndim != 2 or len(buffer) < self.seats:
            raise ValueError(f"a logits buffer must be contiguous float32 with at least {self.seats} rows")
        self._logits = buffer
        self._programs.clear()

    # a forward

    def run(self, forward: Forward, inputs: StepInputs) -> Float32:
        """See Ops.run. A forward is recorded the first time; equal ones (as bound methods of one object are) share a program."""
        rows, logit_rows = len(inputs.token_ids), len(inputs.logit_rows)
        if logit_rows > self.seats:
            raise ValueError(f"{logit_rows} logit rows in a step, at most {self.seats} at a time")
        c_inputs, keep = _c_inputs(inputs)
        last = int(inputs.positions.max(initial=0))
        if self.direct or rows > self.max_step_tokens:
            self.fallbacks += not self.direct
            logits = self._run_direct(forward, c_inputs, last)
        else:
            program = self._program(forward)
            for table in program.tables:
                self._grow(table, last)
            self._execute(program.array, c_inputs)
            self.replays += 1
            logits = cast(Float32, self._logits)
        del keep
        return logits[: logit_rows if self._group is None or self._group.rank == 0 else 0]

    def _program(self, forward: Forward) -> Program:
        program = self._programs.get(forward)
        if program is None:
            recorder = _Recorder()
            result = self._emit_to(recorder, forward)
            address = address_of(self._logits_of(result.width))
            program = Program(recorder.ops, result, address, self.max_step_tokens, self.seats)
            self._programs[forward] = program
            self.captures += 1
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(forward)
        return program

    def _run_direct(self, forward: Forward, inputs: lib.CInputs, last_position: int) -> Float32:
        def run(ops: ctypes.Array[lib.COp]) -> None:
            for table in self._ropes.values():
                self._grow(table, last_position)
            self._execute(ops, inputs)

        direct = _Direct(run, inputs.rows, inputs.logit_rows)
        result = self._emit_to(direct, forward)
        logits = self._logits_of(result.width)
        direct.result(result, logits[: inputs.logit_rows])
        return logits

    def _emit_to(self, emitter: _Emitter, forward: Forward) -> Rows:
        self._emitter = emitter
        try:
            result = _rows(forward(self))
        finally:
            self._emitter = None
        if not result.on_logit_rows:
            raise ValueError("a forward must end in the rows that want logits: use gather_logit_rows")
        return result

    def _execute(self, ops: ctypes.Array[lib.COp], inputs: lib.CInputs) -> None:
        wrong = self._library.helexa_run(self._engine, ops, len(ops), inputs)
        if wrong and self._group is not None and self._group.left:
            raise GroupLeft(wrong.decode())
        if wrong:
            raise ValueError(f"a step's inputs are wrong: {wrong.decode()}")

    def _logits_of(self, width: int) -> Float32:
        if self._logits is None or self._logits.shape[1] != width:
            self._logits = aligned_empty(4 * self.seats * width).view(np.float32).reshape(self.seats, width)
            self._programs.clear()
        return self._logits

    def _emit(self, op: Op) -> Value:
        assert self._emitter is not None, "ops are called within run"
        return cast(Value, self._emitter.emit(op))

    def embed(self, table: Matrix) -> Value:
        matrix = cast(PackedMatrix, table)
        return self._emit(Op(lib.EMBED, Rows(matrix.inputs, False), matrix=matrix))

    def rms_norm(self, x: Value, weight: Vector, eps: float) -> Value:
        rows = _rows(x)
        vector = cast(PackedVector, weight)
        return self._emit(Op(lib.RMS_NORM, Rows(rows.width, rows.on_logit_rows), rows, vector=vector, eps=eps))

    def add(self, x: Value, y: Value) -> Value:
        rows = _rows(x)
        return self._emit(Op(lib.ADD, Rows(rows.width, rows.on_logit_rows), rows, _rows(y)))

    def scale(self, x: Value, factor: float) -> Value:
        rows = _rows(x)
        return self._emit(Op(lib.SCALE, Rows(rows.width, rows.on_logit_rows), rows, scale=factor))

    def soft_cap(self, x: Value, cap: float) -> Value:
        rows = _rows(x)
        return self._emit(Op(lib.SOFT_CAP, Rows(rows.width, rows.on_logit_rows), rows, soft_cap=cap))

    def linear(self, x: Value, weight: Matrix, bias: Vector | None = None) -> Value:
        rows, matrix, vector = _rows(x), cast(PackedMatrix, weight), cast("PackedVector | None", bias)
        assert rows.width == matrix.inputs, "a linear takes rows of its weight's width"
        assert vector is None or len(vector.values) == matrix.outputs, "a bias is as wide as its linear"
        return self._emit(Op(lib.LINEAR, Rows(matrix.outputs, rows.on_logit_rows), rows, matrix=matrix, vector=vector))

    def norm_heads(
        self, qkv: Value, q_weight: Vector, k_weight: Vector, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> Value:
        rows, q, k = _rows(qkv), cast(PackedVector, q_weight), cast(PackedVector, k_weight)
        assert len(q.values) == len(k.values) == head_dim, "the weights of head norms are as wide as a head"
        op = Op(lib.NORM_HEADS, Rows(rows.width, False), rows, vector=q, vector2=k, eps=eps)
        return self._emit(replace(op, heads=heads, kv_heads=kv_heads, head_dim=head_dim))

    def rope_kv_write(self, qkv: Value, layer: int, heads: int, kv_heads: int, head_dim: int, rope: Rope) -> Value:
        out, table = Rows(heads * head_dim, False), self._rope_table(rope)
        op = Op(lib.ROPE_KV, out, _rows(qkv), table=table, layer=layer, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        return self._emit(op)

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
        op = Op(
            lib.ATTENTION,
            Rows(heads * head_dim, False),
            _rows(q),
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=scale or 0.0,
            window=window,
            soft_cap=soft_cap,
        )
        return self._emit(op)

    def silu_mul(self, gate_up: Value) -> Value:
        rows = _rows(gate_up)
        return self._emit(Op(lib.SILU_MUL, Rows(rows.width // 2, rows.on_logit_rows), rows))

    def gelu_tanh_mul(self, gate_up: Value) -> Value:
        rows = _rows(gate_up)
        return self._emit(Op(lib.GELU_MUL, Rows(rows.width // 2, rows.on_logit_rows), rows))

    def moe_ffn(
        self,
        x: Value,
        scores: Value,
        experts: Sequence[Expert],
        top_k: int,
        normalise: bool,
        hidden: Sequence[int] = (),
    ) -> Value:
        rows, logits = _rows(x), _rows(scores)
        assert logits.width == len(experts) >= top_k > 0, "a score an expert, and no more chosen than there are"
        pieces = self._pieces_across([hidden]) if hidden else None
        packed = packed_experts(experts, top_k, normalise, pieces)
        out = Rows(cast(PackedMatrix, experts[0].down).outputs, rows.on_logit_rows)
        return self._emit(Op(lib.MOE, out, rows, logits, experts=packed))

    def gather_logit_rows(self, x: Value) -> Value:
        rows = _rows(x)
        return self._emit(Op(lib.GATHER, Rows(rows.width, True), rows))

    def _rope_table(self, rope: Rope) -> RopeTable:
        key = (rope.inv_freq.tobytes(), rope.neox, rope.scale)
        if key not in self._ropes:
            c_rope = lib.CRope(half=len(rope.inv_freq), neox=int(rope.neox), positions=0)
            self._ropes[key] = RopeTable(c_rope, [np.array(rope.inv_freq, np.float64)], rope.scale)
            self._grow(self._ropes[key], 0)
        return self._ropes[key]

    @staticmethod
    def _grow(table: RopeTable, last_position: int) -> None:
        """cos and sin for positions up to `last_position`, from float64 angles."""
        if table.rope.positions > last_position:
            return
        inv_freq = cast(NDArray[np.float64], table.keep[0])
        starts = range(0, 2 * last_position + 1, ROPE_PIECE)
        angles = [np.arange(start, start + ROPE_PIECE)[:, None] * inv_freq for start in starts]
        cos = np.concatenate([(table.scale * np.cos(piece)).astype(np.float32) for piece in angles])
        sin = np.concatenate([(table.scale * np.sin(piece)).astype(np.float32) for piece in angles])
        table.rope.positions, table.rope.cos, table.rope.sin = len(cos), address_of(cos), address_of(sin)
        table.keep[1:] = [cos, sin]

    # sampling

    def sample(self, logits: Logits, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
        """See Ops.sample."""
        logits = np.ascontiguousarray(logits, np.float32)
        count, vocab = logits.shape
        min_p = np.asarray(rows.min_p, np.float64)
        log_min_p = np.full(count, -np.inf)
        np.log(min_p, out=log_min_p, where=min_p > 0)
        columns: list[NDArray[np.generic]] = [
            np.ascontiguousarray(rows.temperature, np.float32),
            np.ascontiguousarray(rows.top_k, np.int32),
            np.ascontiguousarray(rows.top_p, np.float32),
            log_min_p.astype(np.float32),
            np.ascontiguousarray(rows.seed, np.uint64),
            np.ascontiguousarray(rows.position, np.int32),
        ]
        assert all(len(column) == count for column in columns), "a rule a row"
        ids = np.empty(count, np.int32)
        rules = lib.CSampleRows(*map(address_of, columns))
        self._library.helexa_sample(self._engine, address_of(logits), count, vocab, vocab, rules, address_of(ids))
        return ids, [explain(logits[row]) if ids[row] < 0 else "" for row in range(count)]


def _rows(value: Value) -> Rows:
    return cast(Rows, value)


def _c_inputs(inputs: StepInputs) -> tuple[lib.CInputs, list[NDArray[np.int32]]]:
    """The library's form, and the arrays it points to."""
    arrays = [
        np.ascontiguousarray(array, np.int32)
        for array in (
            inputs.token_ids,
            inputs.positions,
            inputs.sequence_of_row,
            inputs.row_start,
            inputs.context_lens,
            inputs.block_tables,
            inputs.logit_rows,
            inputs.state_slots,
        )
    ]
    sequences = len(arrays[4])
    table_width = arrays[5].shape[1] if sequences else 0
    assert len(arrays[1]) == len(arrays[2]) == len(arrays[0]) and len(arrays[3]) == sequences + 1 and len(arrays[5]) == sequences
    addresses = [address_of(array) if array.size or index < 7 else None for index, array in enumerate(arrays)]
    assert len(arrays[7]) in (0, sequences), "a state slot a sequence"
    c_inputs = lib.CInputs(len(arrays[0]), sequences, table_width, len(arrays[6]), *addresses)
    return c_inputs, arrays
