"""The CUDA ops between ranks, and the memory through which a group of them meets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from ipc.shared_array import ArrayHandle, IpcError, OpenedArray, SharedAllocation
from kernels_cupy.embed.launcher import embed
from kernels_cupy.rank_exchange.launcher import Boards, header_words, own_ids
from workers.group import Group, Parts
from workers.ops.cuda.exchange import Exchange, HostExchange, PeerExchange
from workers.ops.cuda.graphs import Graphs, bucket_of
from workers.ops.cuda.place import Place
from workers.ops.cuda.step_buffers import DeviceStep
from workers.ops.cuda.streaming import Streams
from workers.ops.cuda.weights import DeviceMatrix
from workers.ops.protocol import Matrix, Value

log = logging.getLogger("worker.group")
REGION_FLOATS = 1 << 22  # of a board's two: 512 rows of 8,192 columns at once

Float = torch.float32


class GroupOps:
    """Part of CudaOps; see the ops between ranks in workers/ops/protocol.py.

    A group starts with the host's memory. Each rank then exports a board of its own GPU's (`share`), rank 0 with room for logits behind
    it, and opens those of the others (`open_shares`), if all can. A board that was left may still be mapped by others, so it is freed
    when the next group opens its boards: by then all have left the last.
    """

    remedy: str
    seats: int
    graphs: Graphs
    streams: Streams
    _place: Place
    _torch_device: str
    _vocab: int
    _group: Group | None = None
    _exchange: Exchange | None = None
    _board: SharedAllocation | None = None
    _opened: list[OpenedArray]
    _left: list[SharedAllocation]

    def _inputs(self) -> DeviceStep:
        raise NotImplementedError

    def _empty(self, rows: int, width: int) -> torch.Tensor:
        raise NotImplementedError

    def use_group(self, group: Group | None) -> None:
        """See Ops.use_group. Graphs go: they point to what the last group shared."""
        self.graphs.invalidate()
        if self._exchange is not None:
            with contextlib.suppress(RuntimeError):  # of a device that has failed nothing is waited for
                self._place.synchronise()
            self._exchange.close()
        self._group = group
        self._exchange = None if group is None else HostExchange(group, self._torch_device)
        self.graphs.held_back = group is not None
        _close(self._opened)

    def share(self, ranks: int, columns: int) -> list[ArrayHandle]:
        """What the other ranks of the group open: a board, and behind it room for logits of so many columns. None where GPUs share no
        memory."""
        if self._board is not None:
            self._left.append(self._board)
            self._board = None
        if self._place.arrays is None:
            return []
        words = self._logits_at(ranks) + bucket_of(self.seats) * columns
        try:
            self._board = self._place.arrays.allocate(4 * words)
            array = self._board.array((words,), "int32")
            self._place.tensor_of(array).zero_()
            self._place.synchronise()
            return [self._board.export((words,), "int32")]
        except (IpcError, MemoryError) as error:
            log.warning("the GPU's memory is not shared: %s", error)
            return []

    def open_shares(self, handles: Sequence[Sequence[ArrayHandle]]) -> None:
        """Opens what `share` gave on each rank, and meets the others. Where one cannot, all stay with the host's memory. Raises
        GroupLeft."""
        _close(self._left)
        group = self._ranks
        why, peers = "another rank cannot", None
        try:
            peers = self._open(handles)
        except IpcError as error:
            why = str(error)
        if self._all(peers is not None) and peers is not None:
            if self._all(peers.try_out()):
                self._exchange, self.graphs.held_back = peers, False
                return
            why = "not all rows arrived that were sent through it"
        _close(self._opened)
        self.remedy = (
            f"rows of {group.ranks} ranks go through the host's memory, without graphs: a GPU does not map another's ({why})"
        )
        log.warning("%s", self.remedy)

    def _open(self, handles: Sequence[Sequence[ArrayHandle]]) -> PeerExchange:
        group, arrays, addresses = self._ranks, self._place.arrays, []
        for rank, of_rank in enumerate(handles):
            if arrays is None or not of_rank:
                raise IpcError(f"rank {rank} shares no memory")
            if rank == group.rank:
                assert self._board is not None, "it was exported"
                addresses.append(self._place.address_of(self._board.array((1,), "int32")))
            else:
                self._opened.append(arrays.open(of_rank[0]))
                addresses.append(self._place.address_of(self._opened[-1].array))
        on_device = torch.from_numpy(np.array(addresses, np.int64)).to(self._torch_device)
        rows, at = bucket_of(self.seats), self._logits_at(group.ranks)
        logits: torch.Tensor | tuple[int, int] = (addresses[0] + 4 * at, rows)
        if group.rank == 0:
            assert self._board is not None, "it was exported"
            own = self._place.tensor_of(self._board.array((handles[0][0].shape[0] - at,), "int32", 4 * at))
            logits = own.view(Float).view(rows, -1)
        return PeerExchange(self._place, group, Boards(on_device, group.rank, REGION_FLOATS), logits)

    @staticmethod
    def _logits_at(ranks: int) -> int:
        """Words into a board."""
        return header_words(ranks) + 2 * REGION_FLOATS

    def _all(self, is_so: bool) -> bool:
        """Whether it is on every rank."""
        group = self._ranks
        return bool(group.gather(np.full((1, 1), is_so, np.float32), [[1] * group.ranks]).all())

    @property
    def _ranks(self) -> Group:
        assert self._group is not None, "use_group comes first"
        return self._group

    @property
    def _between(self) -> Exchange:
        assert self._exchange is not None, "use_group comes first"
        return self._exchange

    def all_gather(self, x: Value, parts: Parts) -> Value:
        return cast(Value, self._between.all_gather(cast(torch.Tensor, x), parts))

    def embed_across(self, table: Matrix, first_id: int) -> Value:
        (part,), ids = cast(DeviceMatrix, table).parts, self._inputs().token_ids
        weight = self.streams.keep(part)
        here = own_ids(self._place, ids, first_id, weight.outputs, torch.empty_like(ids))
        rows = embed(self._place, weight, here, self._empty(len(ids), weight.inputs))
        return cast(Value, self._between.gather_rows(rows, here))

    def gather_logits(self, x: Value, widths: Sequence[int]) -> Value:
        self._vocab = sum(widths)  # which the next steps' ids are checked against
        return cast(Value, self._between.gather_logits(cast(torch.Tensor, x), list(widths)))


def _close(shared: list[Any]) -> None:
    """One that is still looked at stays for the next time."""
    shared[:] = [item for item in shared if not _is_closed(item)]


def _is_closed(item: OpenedArray | SharedAllocation) -> bool:
    try:
        item.close()
    except (BufferError, RuntimeError):
        return False
    return True
