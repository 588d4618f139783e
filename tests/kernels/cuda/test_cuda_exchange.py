"""How ranks on GPUs put rows together: the kernels, and whole steps of two processes on the emulator."""

from __future__ import annotations

from typing import Any

import cuda_members as members
import numpy as np
import pytest
import torch
from group_members import Members

from kernels_cupy.checks import KernelArgumentError
from kernels_cupy.rank_exchange import launcher, reference
from kernels_cupy.rank_exchange.launcher import Boards, header_words

REGION = 3 * 300


class Pair:
    """Two ranks on one device, which take turns: what one says in `meet`, the other has said before."""

    def __init__(self, place: Any) -> None:
        words = header_words(2) + 2 * REGION
        self.boards = [place(torch.zeros(words, dtype=torch.int32)) for _ in range(2)]
        addresses = place(torch.tensor([board.data_ptr() for board in self.boards]))
        self.ends = [Boards(addresses, rank, REGION) for rank in range(2)]
        self.words = [place(torch.zeros(2, dtype=torch.int32)) for _ in range(2)]

    def meet(self, device: Any, turn: int) -> None:
        self.boards[0][2 * launcher.LINE] = turn  # rank 1 is there
        for rank in range(2):
            launcher.meet(device, self.ends[rank], 1000, self.words[rank])


def test_rows_are_put_together(device: Any, place: Any, random: np.random.Generator) -> None:
    """Two parts a rank, of strided rows; three times, as regions take turns; whoever has met all has no fault."""
    pair = Pair(place)
    for turn in (1, 2, 3):
        parts = [[random.standard_normal((3, width)).astype(np.float32) for width in (130, 20)] for _ in range(2)]
        for rank, first in ((0, (0, 260)), (1, (130, 280))):
            rows = place(torch.from_numpy(np.concatenate(parts[rank], axis=1)))
            launcher.push(device, pair.ends[rank], rows[:, :130], first[0], 300)
            launcher.push(device, pair.ends[rank], rows[:, 130:], first[1], 300)
        pair.meet(device, turn)
        for end, words in zip(pair.ends, pair.words, strict=True):
            out = launcher.collect(device, end, place(torch.zeros(3, 300)))
            assert out.cpu().numpy().tobytes() == reference.whole_rows(parts).tobytes() and words.tolist() == [0, 0]
    assert [board[0].item() for board in pair.boards] == [3, 3]


def test_rows_by_their_ids(device: Any, place: Any, random: np.random.Generator) -> None:
    """Each row comes from the rank that has its id; columns go to any address."""
    pair, ids = Pair(place), np.array([5, 2, 9], np.int32)
    values = random.standard_normal((3, 300)).astype(np.float32)
    for rank, (first, rows) in enumerate(((0, 5), (5, 5))):
        here = launcher.own_ids(device, place(torch.from_numpy(ids)), first, rows, place(torch.zeros(3, dtype=torch.int32)))
        assert here.tolist() == reference.own_ids(ids, first, rows).tolist()
        mine = np.where((here.cpu().numpy() >= 0)[:, None], values, np.nan).astype(np.float32)
        launcher.push_rows(device, pair.ends[rank], place(torch.from_numpy(mine)), here)
    pair.meet(device, 1)
    for end in pair.ends:
        assert launcher.collect(device, end, place(torch.zeros(3, 300))).cpu().numpy().tobytes() == values.tobytes()
    out = place(torch.zeros(3, 600))
    launcher.place(device, place(torch.from_numpy(values)), out.data_ptr(), 300, 600)
    assert out[:, 300:].cpu().numpy().tobytes() == values.tobytes() and not out[:, :300].any()


def test_a_rank_that_does_not_come_is_a_fault(device: Any, place: Any) -> None:
    """It stays one: nothing waits again. So does a group that was left."""
    for left, fault in ((0, 1), (1, 2)):
        pair = Pair(place)
        pair.words[0][0] = left
        for _ in range(2):
            launcher.meet(device, pair.ends[0], 1000, pair.words[0])
            assert pair.words[0][1].item() == fault
            pair.words[0][0] = 1 - left


def test_what_does_not_fit_is_refused(device: Any, place: Any) -> None:
    """Nothing is written past a region."""
    end = Pair(place).ends[0]
    for first, width in ((0, 301), (299, 300)):
        with pytest.raises(KernelArgumentError, match="fit a region"):
            launcher.push(device, end, place(torch.zeros(3, 2)), first, width)
    with pytest.raises(KernelArgumentError, match="fit a region"):
        launcher.push_rows(device, end, place(torch.zeros(3, 301)), place(torch.zeros(3, dtype=torch.int32)))
    with pytest.raises(KernelArgumentError, match="fit a region"):
        launcher.collect(device, end, place(torch.zeros(3, 301)))


@pytest.mark.parametrize("region", [1 << 12, members.WIDTH])
def test_steps_of_two_ranks(region: int) -> None:
    """Rows by columns, rows by ids and logits, of rows that fit a region together or one at a time; from graphs, in which turns go on
    from one replay to the next."""
    with Members(2, members.decode, region) as group:
        assert members.decode(group.group, region) == ([members.expected(3)] * 4, 3, "")
        assert group.answers() == [([b""] * 4, 3, "")]


@pytest.mark.parametrize(
    ("spoilt", "there", "here"),
    [
        ("opening", "rank 0 shares no memory", "another rank cannot"),
        ("trial", "not all rows arrived that were sent through it", "not all rows arrived that were sent through it"),
    ],
)
def test_all_fall_back_together(spoilt: str, there: str, here: str) -> None:
    """Where one rank alone cannot map the other's memory, or finds other rows in it."""
    with Members(2, members.fall_back, spoilt) as group:
        assert f"({here})" in members.fall_back(group.group, spoilt)
        (words,) = group.answers()
    assert f"({there})" in words


@pytest.mark.parametrize(
    ("rounds", "leaves", "words"), [(0, True, "a rank has left the group"), (3000, False, "another rank's GPU did not come")]
)
def test_a_waiting_rank_ends(rounds: int, leaves: bool, words: str) -> None:
    """When the group is left, while a kernel waits; or when another does not come for too long."""
    with Members(2, members.come_late, rounds, leaves) as group:
        assert words in members.come_late(group.group, rounds, leaves)
        assert group.answers() == ["gone"]
        group.group.leave()
