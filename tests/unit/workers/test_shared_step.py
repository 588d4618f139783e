"""The ring in which rank 0 shares a step with other ranks, between real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from ipc.memfd_array import MemfdArrays
from workers.inputs import StepInputs
from workers.shared_step import Capacity, StepRing

CAPACITY = Capacity.of(max_step_tokens=8, seats=3, context=64)

READER = """
import sys
from ipc.memfd_array import MemfdArrays
from ipc.shared_array import ArrayHandle
from workers.shared_step import Capacity, StepReader
allocation, elements, count = sys.argv[1:]
reader = StepReader(MemfdArrays(), ArrayHandle(bytes.fromhex(allocation), 0, (int(elements),), "int32"), Capacity.of(8, 3, 64), 1)
for _ in range(int(count)):
    step = reader.read()
    print(step and [getattr(step, name).tolist() for name in step.__dataclass_fields__], flush=True)
reader.close()
"""


def inputs(tokens: int, sequences: int) -> StepInputs:
    random = np.random.default_rng(tokens)
    values = [random.integers(0, 1000, size).astype(np.int32) for size in (tokens, tokens, tokens, sequences + 1, sequences)]
    return StepInputs(*values, random.integers(0, 1000, (sequences, 4)).astype(np.int32), np.arange(sequences, dtype=np.int32))


def as_lists(step: StepInputs) -> list:
    return [getattr(step, name).tolist() for name in step.__dataclass_fields__]


def read_elsewhere(ring: StepRing, count: int) -> list[str]:
    """What another process reads, from the first on, or what it says of that."""
    handle = ring.handle()
    done = subprocess.run(
        [sys.executable, "-c", READER, handle.allocation.hex(), str(handle.shape[0]), str(count)],
        capture_output=True,
        text=True,
        cwd=os.getcwd(),
    )
    return done.stdout.splitlines() + done.stderr.splitlines()[-1:]


def test_another_process_reads_what_rank_0_wrote() -> None:
    """A step and the end of a plan in the two slots, as they were written, and as views of the shared memory here."""
    ring = StepRing(MemfdArrays(), CAPACITY, ranks=2)
    values = inputs(7, 2)
    assert as_lists(ring.write(values)) == as_lists(values)
    ring.write_end()
    assert read_elsewhere(ring, 2) == [str(as_lists(values)), "None"]
    assert "holds number 1, not 3" in read_elsewhere(ring, 3)[-1]


def test_a_slot_is_not_overwritten_before_it_was_copied() -> None:
    """The third step wants the first to be acknowledged."""
    ring = StepRing(MemfdArrays(), CAPACITY, ranks=2)
    ring.write(inputs(4, 2))
    ring.write(inputs(4, 2))
    with pytest.raises(ValueError, match="not copied number 1"):
        ring.write(inputs(4, 2))
    read_elsewhere(ring, 1)
    ring.write(inputs(4, 2))


def test_a_step_beyond_the_capacity_is_refused() -> None:
    """Never written past its slot."""
    with pytest.raises(ValueError, match="token_ids of 9"):
        StepRing(MemfdArrays(), CAPACITY).write(inputs(9, 2))
