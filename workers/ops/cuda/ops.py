"""The ops on a GPU: `Ops` over the kernels of kernels_cupy, with float32 activations and KV of float16.

Every kernel sums in one order whatever is computed beside a row, so bits are those of any batch, chunk and bucket. A step's inputs are
copied to one place on the device; a decode step is replayed from a captured graph once its bucket has been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.tensor_info import TensorInfo
from kernels_cupy.attention.launcher import attention, partials_of
from kernels_cupy.causal_conv.launcher import Sequences, causal_conv
from kernels_cupy.elementwise import launcher as elementwise
from kernels_cupy.embed.launcher import embed
from kernels_cupy.gdn_gating.launcher import gdn_gating
from kernels_cupy.gdn_recurrence.launcher import gdn_recurrence
from kernels_cupy.keyed_sampling.launcher import keyed_sample
from kernels_cupy.linear.launcher import Weight, linear
from kernels_cupy.moe_linear.launcher import moe_linear
from kernels_cupy.moe_routing.launcher import Routing, combine, route
from kernels_cupy.registry import CONV_TAPS, GDN_HEADS, HEAD_DIMS
from kernels_cupy.rms_norm.launcher import gated_rms_norm, norm_heads, rms_norm
from kernels_cupy.rope_kv.launcher import Paged, rope_kv_write
from kernels_cupy.silu_mul.launcher import gelu_tanh_mul, silu_mul
from workers.inputs import StepInputs
from workers.ops.cuda import rules, weights
from workers.ops.cuda.graphs import LARGEST_CAPTURED, Graphs, bucket_of
from workers.ops.cuda.group_ops import GroupOps
from workers.ops.cuda.logits import DeviceLogits
from workers.ops.cuda.mixtures import Mixtures
from workers.ops.cuda.place import Place
from workers.ops.cuda.step_buffers import Bucket, DeviceStep, StepBuffers, check_step
from workers.ops.cuda.streaming import Streams
from workers.ops.cuda.weights import DeviceMatrix
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
from workers.ops.sampling import explain

ROPE_PIECE = 1024  # positions: a table grows by pieces of one shape, so a position's bits never change
KV_DTYPE = torch.float16
ALL_STAY_SHARE = 0.9  # of the device's memory: up to it no weight is streamed
KEPT_SHARE = 0.7  # of the device's memory, for weights that stay where not all do: KV and slots want the rest
MEMORY_SHARE = 0.9  # of free device memory; the rest is for activations and graphs


@dataclass
class _RopeTable:
    rope: Rope
    cosines: torch.Tensor  # positions x rotary_dim / 2
    sines: torch.Tensor


@dataclass
class _States:
    shape: RecurrentShape
    past: torch.Tensor  # layers x slots x (kernel - 1) x channels
    matrices: torch.Tensor  # layers x slots x value heads x key dim x value dim


class CudaOps(GroupOps):
    """Implements `Ops` (workers/ops/protocol.py)."""

    kind = "cuda"
    remedy = ""

    def __init__(self, place: Place, max_step_tokens: int, seats: int = 64) -> None:
        self._place, self._torch_device = place, place.torch_device
        self.name = place.name
        self.max_step_tokens, self.seats = max_step_tokens, seats
        self.weight_bytes = 0
        self.graphs = Graphs(place)
        self.streams = Streams(place)
        self._opened, self._left = [], []
        self._buffers = StepBuffers(self._torch_device)
        self._kv: tuple[torch.Tensor, torch.Tensor] | None = None  # keys, values: layers x blocks x K x 16 x D
        self._states: _States | None = None
        self._logits: Float32 | None = None
        self._step: DeviceStep | None = None
        self._ropes: dict[tuple[bytes, bool, float], _RopeTable] = {}
        self._mixtures = Mixtures(self._torch_device)
        self._table_width = 1
        self._vocab = 2**31 - 1
        self._highest_id = 0

    # weights and cache

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        loaded = weights.matrix(parts, self._torch_device, self.streams)
        self.weight_bytes += loaded.nbytes
        return cast(Matrix, loaded)

    def expect_weights(self, tensors: Iterable[TensorInfo], limit: int) -> str:
        """Before a model's weights: where they are more than the device holds, the rest is streamed from the host's memory. `limit` as in
        device_memory. Returns what was decided, in one line; empty where all stays."""
        total, (_, room, bound) = weights.held_bytes(tensors), self.device_memory(limit)
        if total <= ALL_STAY_SHARE * room:
            return ""
        budget = int(KEPT_SHARE * room)
        self.streams.expect(total, budget)
        return (
            f"{(total - budget) / 2**20:.0f} of {total / 2**20:.0f} MiB of weights are streamed from host memory in each step: "
            f"{room / 2**20:.0f} MiB is {bound}"
        )

    def vector(self, tensor: RawTensor) -> Vector:
        loaded = weights.vector(tensor, self._torch_device)
        self.weight_bytes += 4 * len(loaded)
        return cast(Vector, loaded)

    def bytes_per_block(self, layers: int, kv_heads: int, head_dim: int) -> int:
        return 2 * layers * kv_heads * BLOCK_SIZE * head_dim * KV_DTYPE.itemsize

    def allocate_kv(self, layers: int, blocks: int, kv_heads: int, head_dim: int) -> int:
        if head_dim not in HEAD_DIMS:
            raise ModelFileError(f"heads of {head_dim} have no GPU kernel (there are {HEAD_DIMS}); use --device cpu")
        self.graphs.invalidate()
        self._kv = None
        shape = (layers, blocks, kv_heads, BLOCK_SIZE, head_dim)
        self._kv = (self._zeros(shape, KV_DTYPE), self._zeros(shape, KV_DTYPE))
        return 2 * self._kv[0].numel() * KV_DTYPE.itemsize

    def bytes_per_state(self, shape: RecurrentShape) -> int:
        past = (shape.kernel - 1) * shape.channels
        return 4 * shape.layers * (past + shape.value_heads * shape.key_dim * shape.value_dim)

    def allocate_state(self, shape: RecurrentShape, slots: int) -> int:
        if shape.kernel not in CONV_TAPS or (shape.key_dim, shape.value_dim) not in GDN_HEADS:
            sizes = f"a convolution of {shape.kernel} taps and heads of {shape.key_dim} x {shape.value_dim}"
            raise ModelFileError(f"recurrent layers with {sizes} have no GPU kernel; use --device cpu")
        self.graphs.invalidate()
        self._states = None
        past = self._zeros((shape.layers, slots, shape.kernel - 1, shape.channels), torch.float32)
        matrices = self._zeros((shape.layers, slots, shape.value_heads, shape.key_dim, shape.value_dim), torch.float32)
        self._states = _States(shape, past, matrices)
        return 4 * (past.numel() + matrices.numel())

    def copy_state(self, source: int, target: int) -> None:
        states = self._held_states()
        states.past[:, target] = states.past[:, source]
        states.matrices[:, target] = states.matrices[:, source]

    def use_logits_buffer(self, buffer: Float32) -> None:
        self._logits = buffer

    def device_memory(self, limit: int) -> tuple[int, int, str]:
        """Bytes of weights, bytes left for KV and state, and what bound those; `limit` bytes in all, 0: what the device has."""
        free = int(self._place.free_bytes() * MEMORY_SHARE)
        if limit and limit - self.weight_bytes < free:
            return self.weight_bytes, max(0, limit - self.weight_bytes), "memory.limit_mib"
        return self.weight_bytes, free, f"{MEMORY_SHARE:.0%} of the GPU's free memory"

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        try:
            return torch.zeros(shape, dtype=dtype, device=self._torch_device)
        except torch.OutOfMemoryError as error:
            raise weights.memory_error(error) from None

    # a forward

    def run(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> DeviceLogits:
        """See Ops.run. Returns once the device is done, so that its faults show here and times are those of the step."""
        blocks = 0 if self._kv is None else self._kv[0].shape[1]
        check_step(inputs, self._vocab, blocks, None if self._states is None else self._states.past.shape[1])
        wanted = len(inputs.logit_rows)
        if len(inputs.token_ids) == 0:
            raise ValueError("a step without rows")
        if self._logits is not None and wanted > len(self._logits):
            raise ValueError(f"{wanted} rows want logits; at most {len(self._logits)} at a time")
        try:
            logits = self._compute(forward, inputs)[:wanted]
            self._place.synchronise()
            if self._exchange is not None:
                self._exchange.check()
        except torch.OutOfMemoryError as error:
            raise weights.memory_error(error) from None
        finally:
            self._step = None
        host = np.empty(logits.shape, np.float32) if self._logits is None else self._logits[: len(logits)]
        return DeviceLogits(logits, host)

    def _compute(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> torch.Tensor:
        self._prepare(inputs)
        self.streams.mend()
        bucket = self._bucket(len(inputs.token_ids), len(inputs.context_lens), len(inputs.logit_rows))
        self._step = self._buffers.fill(inputs, bucket)
        self._highest_id = int(inputs.token_ids.max())
        logits = self.graphs.run(forward, bucket, lambda: self._forward(forward))
        self.streams.count(len(inputs.logit_rows))
        return logits

    def _forward(self, forward: Callable[[Ops], Value]) -> torch.Tensor:
        self.streams.begin()
        logits = cast(torch.Tensor, forward(cast(Ops, self)))
        self.streams.end()
        return logits

    def _prepare(self, inputs: StepInputs) -> None:
        """What a graph points to grows before the step, and takes the graphs with it."""
        moved = self._buffers.moved
        self._buffers.reserve(self._largest(inputs))
        grown = [self._grow(table, int(inputs.positions.max(initial=0))) for table in self._ropes.values()]
        if self._buffers.moved > moved or any(grown):
            self.graphs.invalidate()

    def _largest(self, inputs: StepInputs) -> Bucket:
        """The captured steps' largest, and this one."""
        if inputs.block_tables.shape[1] > self._table_width:
            self._table_width = bucket_of(inputs.block_tables.shape[1])
            self.graphs.invalidate()
        rows = max(LARGEST_CAPTURED, len(inputs.token_ids))
        sequences = max(LARGEST_CAPTURED, len(inputs.context_lens))
        return Bucket(rows, sequences, max(LARGEST_CAPTURED, len(inputs.logit_rows)), self._table_width)

    def _bucket(self, rows: int, sequences: int, logit_rows: int) -> Bucket:
        """Decode steps are padded to a power of two; others are taken as they are."""
        if rows == logit_rows == sequences and rows <= LARGEST_CAPTURED and not self.graphs.held_back:
            size = bucket_of(rows)
            return Bucket(size, size, size, self._table_width)
        return Bucket(rows, sequences, logit_rows, self._table_width)

    def _inputs(self) -> DeviceStep:
        assert self._step is not None, "ops are called within run"
        return self._step

    def _empty(self, rows: int, width: int) -> torch.Tensor:
        return torch.empty((rows, width), dtype=torch.float32, device=self._torch_device)

    def embed(self, table: Matrix) -> Value:
        (part,), step = cast(DeviceMatrix, table).parts, self._inputs()
        weight = self.streams.keep(part)
        self._vocab = weight.outputs  # which a replay's ids are checked against
        if self._highest_id >= self._vocab:
            raise ValueError("a step's inputs are wrong: a token id outside the vocabulary")
        return cast(Value, embed(self._place, weight, step.token_ids, self._empty(len(step.token_ids), weight.inputs)))

    def rms_norm(self, x: Value, weight: Vector, eps: float) -> Value:
        rows = cast(torch.Tensor, x)
        return cast(Value, rms_norm(self._place, rows, cast(torch.Tensor, weight), eps, torch.empty_like(rows)))

    def add(self, x: Value, y: Value) -> Value:
        rows = cast(torch.Tensor, x)
        return cast(Value, elementwise.add(self._place, rows, cast(torch.Tensor, y), torch.empty_like(rows)))

    def scale(self, x: Value, factor: float) -> Value:
        rows = cast(torch.Tensor, x)
        return cast(Value, elementwise.scale(self._place, rows, factor, torch.empty_like(rows)))

    def soft_cap(self, x: Value, cap: float) -> Value:
        rows = cast(torch.Tensor, x)
        return cast(Value, elementwise.soft_cap(self._place, rows, cap, torch.empty_like(rows)))

    def linear(self, x: Value, weight: Matrix, bias: Vector | None = None) -> Value:
        rows, matrix = cast(torch.Tensor, x), cast(DeviceMatrix, weight)
        out, at = self._empty(len(rows), matrix.outputs), 0
        for part in matrix.parts:
            linear(self._place, rows, self.streams.bring(part), out[:, at : at + part.outputs])
            self.streams.done(part)
            at += part.outputs
        if bias is not None:
            elementwise.add_bias(self._place, out, cast(torch.Tensor, bias), out)
        return cast(Value, out)

    def norm_heads(
        self, qkv: Value, q_weight: Vector, k_weight: Vector, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> Value:
        rows = cast(torch.Tensor, qkv)
        q_w, k_w = cast(torch.Tensor, q_weight), cast(torch.Tensor, k_weight)
        assert len(q_w) == head_dim, "a weight of a head's width"
        return cast(Value, norm_heads(self._place, rows, q_w, k_w, heads, kv_heads, eps, torch.empty_like(rows)))

    def rope_kv_write(self, qkv: Value, layer: int, heads: int, kv_heads: int, head_dim: int, rope: Rope) -> Value:
        rows, paged = cast(torch.Tensor, qkv), self._paged(layer)
        assert paged.keys.shape[1] == kv_heads and paged.keys.shape[3] == head_dim, "KV was allocated for another shape"
        table = self._rope_table(rope)
        q = self._empty(len(rows), heads * head_dim)
        return cast(Value, rope_kv_write(self._place, rows, paged, table.cosines, table.sines, rope.neox, q))

    def _paged(self, layer: int) -> Paged:
        assert self._kv is not None, "allocate_kv comes first"
        step = self._inputs()
        keys, values = self._kv
        return Paged(keys[layer], values[layer], step.positions, step.sequence_of_row, step.block_tables)

    def _rope_table(self, rope: Rope) -> _RopeTable:
        key = (rope.inv_freq.tobytes(), rope.neox, rope.scale)
        if key not in self._ropes:
            empty = torch.empty((0, len(rope.inv_freq)), dtype=torch.float32, device=self._torch_device)
            self._ropes[key] = _RopeTable(rope, empty, empty)
            held = [len(table.cosines) for table in self._ropes.values()]
            self._grow(self._ropes[key], max(0, max(held) - 1, BLOCK_SIZE * self._table_width - 1))
        return self._ropes[key]

    def _grow(self, table: _RopeTable, last_position: int) -> bool:
        """cos and sin for positions up to `last_position`, from float64 angles. Whether the table moved."""
        if len(table.cosines) > last_position:
            return False
        starts = range(0, 2 * last_position + 1, ROPE_PIECE)
        angles = [np.arange(start, start + ROPE_PIECE)[:, None] * table.rope.inv_freq for start in starts]
        turned = [[(table.rope.scale * turn(piece)).astype(np.float32) for piece in angles] for turn in (np.cos, np.sin)]
        table.cosines, table.sines = (torch.from_numpy(np.concatenate(pieces)).to(self._torch_device) for pieces in turned)
        return True

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
        rows, paged = cast(torch.Tensor, q), self._paged(layer)
        shape = partials_of(len(rows), heads, head_dim, paged.block_tables.shape[1])
        partials = torch.empty(shape, dtype=torch.float32, device=self._torch_device) if shape else None
        return cast(Value, attention(self._place, rows, paged, torch.empty_like(rows), scale, window, soft_cap, partials))

    def silu_mul(self, gate_up: Value) -> Value:
        rows = cast(torch.Tensor, gate_up)
        return cast(Value, silu_mul(self._place, rows, self._empty(len(rows), rows.shape[1] // 2)))

    def gelu_tanh_mul(self, gate_up: Value) -> Value:
        rows = cast(torch.Tensor, gate_up)
        return cast(Value, gelu_tanh_mul(self._place, rows, self._empty(len(rows), rows.shape[1] // 2)))

    def moe_ffn(
        self,
        x: Value,
        scores: Value,
        experts: Sequence[Expert],
        top_k: int,
        normalise: bool,
        hidden: Sequence[int] = (),
    ) -> Value:
        rows, of_experts, step = cast(torch.Tensor, x), cast(torch.Tensor, scores), self._inputs()
        gate_up, down = self._mixtures.of(experts)
        routing = Routing.empty(len(rows), len(experts), top_k, self._torch_device)
        route(self._place, of_experts, step.sequence_of_row, normalise, routing)
        pairs, width = len(rows) * top_k, gate_up.parts * gate_up.outputs // 2
        both = moe_linear(self._place, rows, gate_up, routing, top_k, self._empty(pairs, 2 * width))
        gated = silu_mul(self._place, both, self._empty(pairs, width))
        if hidden:
            gated = self._between.all_gather(gated, [hidden])
        parts = moe_linear(self._place, gated, down, routing, 1, self._empty(pairs, down.outputs))
        return cast(Value, combine(self._place, parts, routing, self._empty(len(rows), down.outputs)))

    def gather_logit_rows(self, x: Value) -> Value:
        """Copies, as an embedding in a table of float32."""
        rows, wanted = cast(torch.Tensor, x), self._inputs().logit_rows
        table = Weight(rows.view(torch.uint8), "F32", rows.shape[1])
        return cast(Value, embed(self._place, table, wanted, self._empty(len(wanted), rows.shape[1])))

    # recurrent layers

    def _held_states(self) -> _States:
        assert self._states is not None, "allocate_state comes first"
        return self._states

    def _sequences(self) -> Sequences:
        step = self._inputs()
        return Sequences(step.row_start, step.positions, step.state_slots)

    def causal_conv_update(self, x: Value, weight: Vector, layer: int) -> Value:
        rows, past = cast(torch.Tensor, x), self._held_states().past[layer]
        taps = cast(torch.Tensor, weight).view(-1, rows.shape[1])
        return cast(Value, causal_conv(self._place, rows, taps, past, self._sequences(), torch.empty_like(rows)))

    def gdn_gating(self, ba: Value, decay: Vector, dt_bias: Vector) -> Value:
        rows = cast(torch.Tensor, ba)
        gates = gdn_gating(self._place, rows, cast(torch.Tensor, decay), cast(torch.Tensor, dt_bias), torch.empty_like(rows))
        return cast(Value, gates)

    def recurrent_update(self, qkv: Value, gates: Value, layer: int) -> Value:
        rows, states = cast(torch.Tensor, qkv), self._held_states()
        shape = states.shape
        out = self._empty(len(rows), shape.value_heads * shape.value_dim)
        held = (states.matrices[layer], self._sequences(), shape.key_heads, shape.tiled)
        return cast(Value, gdn_recurrence(self._place, rows, cast(torch.Tensor, gates), *held, out))

    def gated_rms_norm(self, x: Value, gate: Value, weight: Vector, eps: float) -> Value:
        rows, gates = cast(torch.Tensor, x), cast(torch.Tensor, gate)
        out = torch.empty_like(rows)
        return cast(Value, gated_rms_norm(self._place, rows, gates, cast(torch.Tensor, weight), eps, out))

    def sigmoid_mul(self, x: Value, gate: Value) -> Value:
        rows = cast(torch.Tensor, x)
        return cast(Value, elementwise.sigmoid_mul(self._place, rows, cast(torch.Tensor, gate), torch.empty_like(rows)))

    # sampling

    def sample(self, logits: Logits, rows: SampleRows) -> tuple[NDArray[np.int32], list[str]]:
        """See Ops.sample. Only ids and error words come to the host, in one transfer."""
        if len(logits) == 0:
            return np.empty(0, np.int32), []
        if isinstance(logits, DeviceLogits):
            on_device = logits.on_device()
        else:
            on_device = torch.from_numpy(np.array(logits, np.float32)).to(self._torch_device)
        drawn = torch.stack(keyed_sample(self._place, on_device, rules.on_device(rows, self._torch_device)))
        ids, errors = drawn.cpu().numpy()
        return ids, [explain(logits[row]) if errors[row] else "" for row in range(len(ids))]
