"""`memory.kv_blocks`: an exact size, or an error."""

from __future__ import annotations

import pytest

from helexa.catalogue.memory_plan import StateNeed, plan_memory
from helexa.errors import StartError


def test_an_exact_number_of_blocks_is_taken():
    """Also one that `auto` would call too few; what bound it is said."""
    plan = plan_memory(10**6, 100, 1024, 8, True, "a test", 20)
    assert (plan.blocks, plan.seats) == (20, 8) and "memory.kv_blocks" in plan.note


def test_more_blocks_than_memory_holds_is_an_error():
    with pytest.raises(StartError, match=r"memory.kv_blocks = 10001 needs .* bound by a test"):
        plan_memory(10**6, 100, 1024, 8, True, "a test", 10_001)


def test_recurrent_state_is_counted():
    """A seat of a hybrid model takes its state beside its KV, and snapshots their share; without state nothing changes."""
    plain = plan_memory(10**9, 10_000, 4096, "auto", True, "a test")
    assert plan_memory(10**9, 10_000, 4096, "auto", True, "a test", "auto", StateNeed(0, 10**9)) == plain
    assert (plain.seats, plain.blocks, plain.snapshots) == (64, 16384, 0)
    plan = plan_memory(10**9, 10_000, 4096, "auto", True, "a test", "auto", StateNeed(20 * 10**6, 10**8))
    assert (plan.snapshots, plan.seats) == (5, 39)  # 900 MB over 22.56 MB a seat
    assert plan.blocks == 39 * 256 and "for 5 snapshots" in plan.note
    assert plan_memory(10**9, 10_000, 4096, "auto", True, "", "auto", StateNeed(10**7, 10**12)).snapshots == 25  # a quarter
    assert plan_memory(10**9, 10_000, 4096, "auto", True, "", 2560, StateNeed(10**8, 0)).seats == 9
    assert plan_memory(10**9, 10_000, 4096, 4, True, "", "auto", StateNeed(10**8, 0)).blocks == 4 * 256
    with pytest.raises(StartError, match="too few to serve"):
        plan_memory(10**9, 10_000, 4096, 10, True, "a test", "auto", StateNeed(10**8, 0))
