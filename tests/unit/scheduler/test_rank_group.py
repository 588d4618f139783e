"""Several ranks answer as one worker: what reaches the engine, when, and with which numbers."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import LOADED
from msgspec import structs

from helexa.scheduler.rank_group import RankGroup, combine, recipients
from ipc.codec import BadMessage
from ipc.messages import AllocateKV, Exported, Fault, Join, Load, Loaded, Plan, Ready, Result, RowError, SharedHandle, Yield


def loaded(**changes: Any) -> Loaded:
    numbers = {"free_bytes": 1000, "weight_bytes": 300, "bytes_per_block": 10}
    return structs.replace(LOADED, **numbers | changes)


def result() -> Result:
    return Result(1, 1, 0, True, [0], [5], {}, {}, 1.0)


def test_rank_0_is_told_last_and_called_back_alone():
    """It goes ahead as soon as it has a plan; the others wait for it."""
    for message in (Load({}, 1, 1, 0, 0, 0, "auto"), Join([]), AllocateKV(1, 1), Plan(1, 1, 1, *([] for _ in range(10)))):
        assert recipients(message, 3) == [2, 1, 0] and recipients(message, 1) == [0]
    assert recipients(Yield(1), 3) == [0]


def test_one_rank_is_heard_as_it_speaks():
    """Its numbers are not touched, however many there are of them."""
    ranks = RankGroup(1, 0)
    assert ranks.take(0, loaded()) == loaded()
    assert ranks.take(0, Ready(7)) == Ready(7)
    said = result()
    assert ranks.take(0, said) is said


def test_what_all_must_say_comes_when_all_have_said_it():
    """In whatever order: handles in the order of ranks, blocks that cost what they cost all, bytes of all together."""
    ranks = RankGroup(3, 0)
    handles = [SharedHandle(bytes([rank]), 0, [1], "float32") for rank in range(3)]
    assert ranks.take(2, Exported([handles[2]])) is None and ranks.take(0, Exported([handles[0]])) is None
    assert ranks.take(1, Exported([handles[1]])) == Join([[handle] for handle in handles])
    assert ranks.take(1, loaded(bytes_per_block=20)) is None
    assert ranks.take(0, loaded(prices=[(1, 9.0)])) is None
    whole = ranks.take(2, loaded())
    assert isinstance(whole, Loaded) and whole.bytes_per_block == 40 and whole.prices == [(1, 9.0)]
    assert [ranks.take(rank, Ready(100 + rank)) for rank in range(3)] == [None, None, Ready(303)]


def test_a_step_is_answered_by_rank_0_and_a_fault_by_any():
    """What another rank says out of its turn is no message of this protocol, and neither is what it has said before."""
    ranks = RankGroup(2, 0)
    assert ranks.take(1, Fault("device", "x")) == Fault("device", "x")
    for said in (result(), RowError(1, 1, 0, "x")):
        with pytest.raises(BadMessage, match="of rank 1; it is rank 0"):
            ranks.take(1, said)
    assert ranks.take(1, loaded()) is None
    with pytest.raises(BadMessage, match="a second Loaded of rank 1"):
        ranks.take(1, loaded())


def test_ranks_on_one_machine_share_its_memory():
    """Free memory has the others' weights in it already; a limit of the configuration is for all of them together."""
    uneven = [loaded(bytes_per_block=20, state_bytes=4, free_bytes=900), loaded(weight_bytes=200, load_seconds=2.0)]
    whole = combine(uneven, 0)
    assert (whole.free_bytes, whole.weight_bytes, whole.bytes_per_block, whole.state_bytes) == (900, 500, 30, 4)
    assert whole.load_seconds == 2.0 and whole.threads_note == "1 of 2 CPUs, in each of 2 ranks"
    assert combine(uneven, 1300).free_bytes == 800 and combine(uneven, 400).free_bytes == 0


def test_ranks_on_devices_have_a_memory_each():
    """The one with least room decides: a block is as large as the largest of any rank."""
    uneven = [loaded(own_memory=True, bytes_per_block=20, free_bytes=900), loaded(own_memory=True, state_bytes=8)]
    whole = combine(uneven, 5000)
    assert (whole.free_bytes, whole.weight_bytes, whole.bytes_per_block, whole.state_bytes) == (900, 600, 20, 8)
