"""A rank behind rank 0: it runs the same steps on its shard, and knows of sequences only where their KV and state lie."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from ipc.memfd_array import MemfdArrays
from ipc.messages import Plan
from ipc.shared_array import ArrayHandle, OpenedArray
from workers.group import Group
from workers.held_model import HeldModel
from workers.ops.protocol import Ops
from workers.seats import PlanError
from workers.shared_step import HOST_HANDLES, Capacity, StepReader
from workers.weights.sharding import Shard


@dataclass
class _Joined:
    group: Group
    steps: StepReader
    opened: list[OpenedArray]


class Follower:
    """Its weights are loaded at once, and stay from one group to the next."""

    def __init__(self, file: Checkpoint, ops: Ops, context: int, max_step_tokens: int, max_seats: int, shard: Shard) -> None:
        self.held = HeldModel(file, ops, context, max_step_tokens, max_seats, shard)
        self._shard = shard
        self._arrays = MemfdArrays()
        self._joined: _Joined | None = None

    def export(self, spins: int) -> list[ArrayHandle]:
        """What its device shares; in the host's memory all is rank 0's."""
        self.leave()
        return self.held.share(self._shard.ranks)

    def join(self, handles: list[list[ArrayHandle]], spins: int) -> Group:
        """Opens what rank 0 exported. Raises IpcError where it is gone."""
        if len(handles) != self._shard.ranks or len(handles[0]) < HOST_HANDLES:
            raise PlanError(f"{len(handles)} ranks join a group of {self._shard.ranks}")
        self.leave()
        board, ring, logits = handles[0][:HOST_HANDLES]
        opened: list[OpenedArray] = [self._arrays.open(board), self._arrays.open(logits)]
        capacity = Capacity.of(self.held.max_step_tokens, self.held.max_seats, self.held.context)
        group = Group(self._shard.rank, self._shard.ranks, opened[0].array, opened[1].array, spins)
        self._joined = _Joined(group, StepReader(self._arrays, ring, capacity, self._shard.rank), opened)
        self.held.ops.use_group(group)
        self.held.open_shares([handles[0][HOST_HANDLES:], *handles[1:]])
        return group

    def leave(self) -> None:
        """Ends the group, if there is one, for all its ranks. What was opened is let go with it."""
        if self._joined is not None:
            self._joined.group.leave()
            self.held.ops.use_group(None)
            self._joined = None

    def allocate(self, blocks: int, seats: int, snapshots: int = 0) -> int:
        """As Runner.allocate."""
        return self.held.allocate(blocks, seats, snapshots)

    def follow(self, plan: Plan) -> None:
        """Runs the plan's steps as rank 0 makes them, until it says that no other follows. Raises GroupLeft."""
        if self._joined is None:
            raise PlanError("a plan came before Join")
        for substep in range(max(1, plan.repeat)):
            self._joined.group.hear()
            step = self._joined.steps.read()
            if step is None:
                return
            if substep == 0:
                for join in plan.joins:
                    self.held.resume_state(join)
            self.held.run(step)
            if substep == 0:
                self.held.save_states(plan)
