"""Ranks as real processes: what they gather and agree on, and that nobody waits for a group that was left."""

from __future__ import annotations

import threading
from typing import Any

import group_members
import numpy as np
import pytest
from group_members import Members, whole_rows

from workers.group import MOST_COLUMNS, REGION_FLOATS, Group, GroupLeft, board_bytes, columns_of, pieces_of
from workers.ops.native import library

PARTS = {
    "uneven": [[5, 0, 11]],
    "several parts": [[3, 2, 4], [1, 6, 2], [8, 8, 8]],
    "one column each": [[1, 1, 1]],
}
WORKS = [group_members.gather_with_group, group_members.gather_with_reference]
if library.why_missing() is None:
    WORKS += [group_members.gather_with_native, group_members.take_turns]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_all_ranks_get_the_whole_rows(work: Any, parts: list[list[int]]) -> None:
    """Many gathers after each other, each of other numbers, of the ops and of the group itself, in turns too. Rank 0 is here."""
    if work is not group_members.gather_with_group and any(0 in widths for widths in parts):
        parts = [[5, 1, 11]]  # a table has at least a column
    width, turns = sum(map(sum, parts)), 5
    with Members(3, work, 9, parts, turns) as members:
        here = work(members.group, 9, parts, turns)
        expected = [whole_rows(9, width, turn).tobytes() for turn in range(turns)]
        assert here[:turns] == expected and set(here) == set(expected)
        assert members.answers() == [here, here]


@pytest.mark.skipif(library.why_missing() is not None, reason="native ops are not built")
@pytest.mark.parametrize("spins", [0, 2000])
@pytest.mark.parametrize("rows", [1, 60])
def test_gathers_that_follow_each_other_closely(spins: int, rows: int) -> None:
    """Thousands, by ranks that sleep at once and by ranks that look for each other first: no row is read before it is whole, or
    written to while somebody reads it."""
    parts = [[48, 16, 32], [8, 8, 16]]
    with Members(3, group_members.many_gathers, spins, rows, parts, 60) as members:
        assert group_members.many_gathers(members.group, spins, rows, parts, 60) == 0
        assert members.answers() == [0, 0]


def test_rows_that_do_not_fit_go_in_turns() -> None:
    """More rows than a region holds, and a row that none does."""
    width = MOST_COLUMNS
    rows = REGION_FLOATS // width + 3
    with Members(2, group_members.gather_with_group, rows, [[width - 7, 7]], 2) as members:
        here = group_members.gather_with_group(members.group, rows, [[width - 7, 7]], 2)
        assert here == [whole_rows(rows, width, turn).tobytes() for turn in range(2)] and members.answers() == [here]
    group = Group(0, 1, np.zeros(board_bytes(1), np.uint8), np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match="do not fit between ranks"):
        group.gather(np.zeros((1, width + 1), np.float32), [[width + 1]])


def test_ranks_agree_on_what_rank_0_says() -> None:
    """Numbers to the bit, and its clock, which is not their own."""
    with Members(3, group_members.agree, 20) as members:
        here = group_members.agree(members.group, 20)
        assert here[:-1] == [value + 0.1 for value in range(20)] and members.answers() == [here, here]


def test_rank_0_does_not_wait_for_those_who_listen() -> None:
    """It tells a hundred times before any of them need be there; each hears all of it."""
    with Members(3, group_members.listen, 100) as members:
        for _ in range(100):
            members.group.tell()
        assert members.answers() == [100, 100]


@pytest.mark.parametrize("work", [group_members.meet, group_members.gather_with_native], ids=lambda work: work.__name__)
def test_a_group_that_is_left_keeps_nobody(work: Any) -> None:
    """Rank 0 never comes: those who wait for it, asleep or not yet there, are told that it has left."""
    if library.why_missing() is not None and work is group_members.gather_with_native:
        pytest.skip("native ops are not built")
    arguments = (4, [[2, 2, 2]], 1) if work is group_members.gather_with_native else ()
    with Members(3, work, *arguments) as members:
        members.group.leave()
        assert members.answers() == ["left", "left"] and members.group.left
        members.group.meet()  # where they came before they were told
        with pytest.raises(GroupLeft):
            members.group.meet()


def test_a_mark_of_any_line_says_that_the_group_is_left() -> None:
    """Lines are marked one by one: a rank that had seen the mark of rank 0, and not yet its own, took the step's end for a fault."""
    board = np.zeros(board_bytes(2), np.uint8)
    ranks = [Group(rank, 2, board, np.zeros((1, 1), np.float32)) for rank in range(2)]
    assert not any(group.left for group in ranks)
    board.view(np.uint32)[0] |= 1  # rank 0's
    assert all(group.left for group in ranks)


def test_a_rank_that_dies_is_waited_for_until_the_group_is_left() -> None:
    """Its death wakes nobody by itself; whoever ends the group does, here from another thread."""
    with Members(3, group_members.meet) as members:
        members.processes[1].kill()
        members.processes[1].join()
        outcome: list[str] = []

        def wait() -> None:
            try:
                members.group.meet()
            except GroupLeft:
                outcome.append("left")

        waiting = threading.Thread(target=wait)
        waiting.start()
        members.group.leave()
        waiting.join()
        assert outcome == ["left"] and members._answers[0].recv() == "left"


def test_counts_begin_again_without_anybody_noticing() -> None:
    """Words wrap around after two thousand million meetings."""
    board = np.zeros(board_bytes(2), np.uint8)
    lines = board[: 2 * 64].view(np.uint32).reshape(2, -1)
    lines[:, 0] = 2**32 - 4
    ends = [Group(rank, 2, board, np.zeros((1, 1), np.float32)) for rank in (0, 1)]
    other = threading.Thread(target=lambda: [ends[1].meet() for _ in range(5)])
    other.start()
    for _ in range(5):
        ends[0].meet()
    other.join()
    assert lines[:, 0].tolist() == [6, 6]


def test_pieces_and_columns_say_the_same() -> None:
    """Every column of a whole row belongs to one rank."""
    parts = PARTS["several parts"]
    columns = np.concatenate([columns_of(parts, rank) for rank in range(3)])
    assert sorted(columns.tolist()) == list(range(sum(map(sum, parts))))
    assert pieces_of(parts, 1) == [(3, 2), (10, 6), (26, 8)]
