"""Ranks of a group as processes of their own, for tests: each opens the board and does one kind of work on it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipc.memfd_array import MemfdArrays
from ipc.shared_array import ArrayHandle, SharedAllocation
from workers.group import Group, GroupLeft, Parts, board_bytes, columns_of, new_board
from workers.inputs import StepInputs
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Matrix, Ops, RawTensor, Value
from workers.ops.reference import ReferenceOps

Float32 = NDArray[np.float32]
ROWS = 64


def whole_rows(rows: int, width: int, turn: int) -> Float32:
    return np.random.default_rng([rows, width, turn]).standard_normal((rows, width), dtype=np.float32)


def gather_with_group(group: Group, rows: int, parts: Parts, turns: int) -> list[bytes]:
    """What the rank gets in each turn, from its columns of `whole_rows`."""
    width = sum(map(sum, parts))
    own = columns_of(parts, group.rank)
    return [group.gather(whole_rows(rows, width, turn)[:, own], parts).tobytes() for turn in range(turns)]


def gather_with_native(group: Group, rows: int, parts: Parts, turns: int, direct: bool = False) -> list[bytes]:
    return _gather_with(NativeOps(2, ROWS, ROWS, direct=direct), group, rows, parts, turns)


def gather_with_reference(group: Group, rows: int, parts: Parts, turns: int) -> list[bytes]:
    return _gather_with(ReferenceOps(1), group, rows, parts, turns)


def _gather_with(ops: Any, group: Group, rows: int, parts: Parts, turns: int) -> list[bytes]:
    ops.use_group(group)
    width, own, results = sum(map(sum, parts)), columns_of(parts, group.rank), []
    for turn in range(turns):
        table = _table(ops, np.ascontiguousarray(whole_rows(rows, width, turn)[:, own]))

        def forward(step: Ops, table: Matrix = table) -> Value:
            return step.gather_logit_rows(step.all_gather(step.embed(table), parts))

        results.append(_result(ops, forward, rows))
    return results


def take_turns(group: Group, rows: int, parts: Parts, turns: int) -> list[bytes]:
    """One turn in the native ops, one in Python."""
    width, own = sum(map(sum, parts)), columns_of(parts, group.rank)
    results = gather_with_native(group, rows, parts, turns)
    for turn in range(turns):
        results.append(group.gather(whole_rows(rows, width, turn)[:, own], parts).tobytes())
        results += gather_with_native(group, rows, parts, 1)
    return results


def many_gathers(group: Group, spins: int, rows: int, parts: Parts, runs: int) -> int:
    """How often a forward of 30 gathers, one after another, made anything but the sum of their rows; steps begin as rank 0 tells."""
    group.spins = spins
    ops, width, own = NativeOps(1, ROWS, ROWS), sum(map(sum, parts)), columns_of(parts, group.rank)
    ops.use_group(group)
    whole = [whole_rows(rows, width, turn) for turn in range(30)]
    tables = [_table(ops, np.ascontiguousarray(values[:, own])) for values in whole]
    expected = whole[0]
    for values in whole[1:]:
        expected = expected + values

    def forward(step: Ops) -> Value:
        total = step.all_gather(step.embed(tables[0]), parts)
        for table in tables[1:]:
            total = step.add(total, step.all_gather(step.embed(table), parts))
        return step.gather_logit_rows(total)

    wrong = 0
    for run in range(runs):
        if group.rank == 0:
            group.tell()
        else:
            group.hear()
        wrong += _result(ops, forward, rows) != expected.tobytes() or group.agree(float(run + group.rank)) != run
    return wrong


def _table(ops: Any, values: Float32) -> Matrix:
    matrix: Matrix = ops.matrix([RawTensor("x", "F32", values.shape, values.reshape(-1).view(np.uint8))])
    return matrix


def _result(ops: Any, forward: Callable[[Ops], Value], rows: int) -> bytes:
    """Of a forward that ends in whole rows, which a rank behind rank 0 is not given."""
    ids = np.arange(rows, dtype=np.int32)
    one, blocks = np.array([0, rows], np.int32), np.arange(-(-rows // 16), dtype=np.int32)[None]
    made: Float32 = ops.run(forward, StepInputs(ids, ids, np.zeros(rows, np.int32), one, one[1:], blocks, ids))
    return (made if len(made) else ops._logits[:rows]).tobytes()


def agree(group: Group, values: int) -> list[float]:
    """Rank 0's numbers, and its clock."""
    return [group.agree(100 * group.rank + value + 0.1) for value in range(values)] + [group.clock()]


def listen(group: Group, times: int) -> int:
    """Hears rank 0 so often."""
    for _ in range(times):
        group.hear()
    return times


def meet(group: Group) -> str:
    group.meet()
    return "met"


class Members:
    """All ranks but 0, which is `group`, here. `work` is one of the functions above."""

    def __init__(self, ranks: int, work: Any, *arguments: Any) -> None:
        self._allocation: SharedAllocation = new_board(MemfdArrays(), ranks)
        size = board_bytes(ranks)
        self.group = Group(0, ranks, self._allocation.array((size,), "uint8"), np.zeros((ROWS, 512), np.float32))
        handle = self._allocation.export((size,), "uint8")
        context = multiprocessing.get_context("spawn")
        self.processes: list[BaseProcess] = []
        self._answers: list[Connection] = []
        for rank in range(1, ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(rank, ranks, handle, work, arguments, theirs))
            process.start()
            theirs.close()
            self.processes.append(process)
            self._answers.append(ours)

    def answers(self) -> list[Any]:
        return [answer.recv() for answer in self._answers]

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _run(rank: int, ranks: int, handle: ArrayHandle, work: Any, arguments: tuple[Any, ...], answer: Connection) -> None:
    opened = MemfdArrays().open(handle)
    assert opened.array is not None
    group = Group(rank, ranks, opened.array, np.zeros((ROWS, 512), np.float32))
    try:
        answer.send(work(group, *arguments))
    except GroupLeft:
        answer.send("left")
    except BaseException:
        group.leave()  # so that no other waits
        raise
