"""The native ops between ranks: what they share, and what they add to a step program."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

from helexa.errors import ModelFileError
from workers.group import LINE_BYTES, MOST_COLUMNS, REGION_FLOATS, Group
from workers.ops.native import library as lib
from workers.ops.native.memory import address_of
from workers.ops.native.program import Op, PackedMatrix, PackedPieces, Rows, packed_pieces
from workers.ops.protocol import Matrix, Parts, Value


class GroupOps:
    """Part of NativeOps; see the ops between ranks in workers/ops/protocol.py."""

    _library: Any
    _engine: ctypes.c_void_p
    _group: Group | None = None

    def _emit(self, op: Op) -> Value:
        raise NotImplementedError

    def use_group(self, group: Group | None) -> None:
        """See Ops.use_group. Programs stay: they hold no address of what ranks share."""
        self._group = group
        self._library.helexa_engine_set_group(self._engine, None if group is None else _c_group(group))

    @property
    def _ranks(self) -> Group:
        assert self._group is not None, "use_group comes first"
        return self._group

    def _pieces_across(self, parts: Parts) -> PackedPieces:
        """Of rows that go through a region. ModelFileError where they are too wide."""
        pieces = packed_pieces(parts, self._ranks.rank)
        if pieces.pieces.width > MOST_COLUMNS:
            raise ModelFileError(f"rows of {pieces.pieces.width} columns do not fit between ranks; {MOST_COLUMNS} do")
        return pieces

    def all_gather(self, x: Value, parts: Parts) -> Value:
        rows, pieces = cast(Rows, x), self._pieces_across(parts)
        assert rows.width == sum(widths[self._ranks.rank] for widths in parts), "a rank has its share of each part"
        return self._emit(Op(lib.ALL_GATHER, Rows(pieces.pieces.width, rows.on_logit_rows), rows, pieces=pieces))

    def embed_across(self, table: Matrix, first_id: int) -> Value:
        matrix = cast(PackedMatrix, table)
        assert matrix.inputs <= MOST_COLUMNS, "a row fits into a region"
        return self._emit(Op(lib.EMBED_ACROSS, Rows(matrix.inputs, False), matrix=matrix, first_id=first_id))

    def gather_logits(self, x: Value, widths: Sequence[int]) -> Value:
        rows, pieces = cast(Rows, x), packed_pieces([widths], self._ranks.rank)
        return self._emit(Op(lib.GATHER_LOGITS, Rows(pieces.pieces.width, rows.on_logit_rows), rows, pieces=pieces))


def _c_group(group: Group) -> lib.CGroup:
    lines = address_of(group.board)
    regions = lines + LINE_BYTES * group.ranks
    return lib.CGroup(group.rank, group.ranks, group.spins, lines, regions, REGION_FLOATS, address_of(group.logits))
