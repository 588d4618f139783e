"""`memory.kv_blocks`: an exact size, or an error."""

from __future__ import annotations

import pytest

from helexa.catalogue.memory_plan import plan_memory
from helexa.errors import StartError


def test_an_exact_number_of_blocks_is_taken():
    """Also one that `auto` would call too few; what bound it is said."""
    plan = plan_memory(10**6, 100, 1024, 8, True, "a test", 20)
    assert (plan.blocks, plan.seats) == (20, 8) and "memory.kv_blocks" in plan.note


def test_more_blocks_than_memory_holds_is_an_error():
    with pytest.raises(StartError, match=r"memory.kv_blocks = 10001 needs .* bound by a test"):
        plan_memory(10**6, 100, 1024, 8, True, "a test", 10_001)
