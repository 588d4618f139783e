"""A loaded model, or what a rank holds of one, with the KV and recurrent state of its sequences."""

from __future__ import annotations

from helexa.formats.checkpoint import Checkpoint
from ipc.messages import Plan, SeatJoin
from ipc.shared_array import ArrayHandle
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import Model, PoolingModel, RecurrentModel, load_model
from workers.ops.protocol import Logits, Ops
from workers.seats import PlanError
from workers.weights.sharding import WHOLE, Shard


class HeldModel:
    """Weights are loaded at once; `allocate` makes the rest. Every rank does the same with it in the same order."""

    def __init__(
        self, file: Checkpoint, ops: Ops, context: int, max_step_tokens: int, max_seats: int, shard: Shard = WHOLE
    ) -> None:
        self.ops = ops
        self.model: Model = load_model(file, ops, shard)
        self.recurrent = self.model.recurrent if isinstance(self.model, RecurrentModel) else None
        self.context = min(context or self.model.context, self.model.context)
        self.max_step_tokens = max_step_tokens
        self.max_seats = max_seats
        self.pooling = self.model.pooling if isinstance(self.model, PoolingModel) else ""
        self.blocks_per_sequence = -(-self.context // BLOCK_SIZE)
        self._seats = self._snapshots = 0

    @property
    def columns(self) -> int:
        """Of what a forward ends in."""
        return self.model.width if isinstance(self.model, PoolingModel) and self.pooling else self.model.vocab

    def bytes_per_block(self) -> int:
        return self.ops.bytes_per_block(self.model.layers, self.model.kv_heads, self.model.head_dim)

    def state_bytes(self) -> int:
        """Of the recurrent state of a sequence; 0 where the model has none."""
        return 0 if self.recurrent is None else self.ops.bytes_per_state(self.recurrent)

    def allocate(self, blocks: int, seats: int, snapshots: int = 0) -> int:
        """Forgets every sequence. Returns the bytes of KV and state; raises MemoryError."""
        self._seats, self._snapshots = seats, snapshots
        states = 0 if self.recurrent is None else self.ops.allocate_state(self.recurrent, seats + snapshots)
        return states + self.allocate_kv(blocks)

    def allocate_kv(self, blocks: int) -> int:
        return self.ops.allocate_kv(self.model.layers, blocks, self.model.kv_heads, self.model.head_dim)

    def share(self, ranks: int) -> list[ArrayHandle]:
        """Memory of the ops' own device through which a new group meets, after `use_group`; none on the CPU."""
        share = getattr(self.ops, "share", None)
        handles: list[ArrayHandle] = [] if share is None else share(ranks, self.columns)
        return handles

    def open_shares(self, handles: list[list[ArrayHandle]]) -> None:
        """Opens what `share` gave on each rank; all ranks come here. Raises GroupLeft."""
        if (open_shares := getattr(self.ops, "open_shares", None)) is not None:
            open_shares(handles)

    def run(self, inputs: StepInputs) -> Logits:
        """See Ops.run."""
        return self.ops.run(self.model.forward, inputs)

    def resume_state(self, join: SeatJoin) -> None:
        """A sequence that joins with a history goes on from the state behind it. The seats' states come first, then snapshots."""
        if join.snapshot >= 0:
            self.ops.copy_state(self._seats + self._checked_snapshot(join.snapshot), join.seat)
        elif self.recurrent is not None and join.history:
            raise PlanError(f"seat {join.seat} joins with a history, and no snapshot of the state behind it")

    def save_states(self, plan: Plan) -> None:
        for seat, snapshot in zip(plan.save_seats, plan.snapshots, strict=True):
            self.ops.copy_state(seat, self._seats + self._checked_snapshot(snapshot))

    def _checked_snapshot(self, snapshot: int) -> int:
        if self.recurrent is None or not 0 <= snapshot < self._snapshots:
            raise PlanError(f"snapshot {snapshot} of {self._snapshots}")
        return snapshot
