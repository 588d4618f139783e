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
allocation, elements, step = sys.argv[1:]
reader = StepReader(MemfdArrays(), ArrayHandle(bytes.fromhex(allocation), 0, (int(elements),), "int32"), Capacity.of(8, 3, 64), 1)
inputs = reader.read(int(step))
print([getattr(inputs, name).tolist() for name in inputs.__dataclass_fields__])
reader.close()
"""


def inputs(tokens: int, sequences: int) -> StepInputs:
    random = np.random.default_rng(tokens)
    values = [random.integers(0, 1000, size).astype(np.int32) for size in (tokens, tokens, tokens, sequences + 1, sequences)]
    return StepInputs(*values, random.integers(0, 1000, (sequences, 4)).astype(np.int32), np.arange(sequences, dtype=np.int32))


def as_lists(step: StepInputs) -> list:
    return [getattr(step, name).tolist() for name in step.__dataclass_fields__]


def read_elsewhere(ring: StepRing, step: int) -> str:
    handle = ring.handle()
    done = subprocess.run(
        [sys.executable, "-c", READER, handle.allocation.hex(), str(handle.shape[0]), str(step)],
        capture_output=True,
        text=True,
        cwd=os.getcwd(),
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_another_process_reads_what_rank_0_wrote():
    """Two steps in the two slots, each as it was written, and as views of the shared memory here."""
    ring = StepRing(MemfdArrays(), CAPACITY, ranks=2)
    steps = {step: inputs(8 - step, 3 - step) for step in (1, 2)}
    for step, values in steps.items():
        assert as_lists(ring.write(step, values)) == as_lists(values)
    for step, values in steps.items():
        assert read_elsewhere(ring, step) == str(as_lists(values))
    assert "holds step 1, not 3" in read_elsewhere(ring, 3)


def test_a_slot_is_not_overwritten_before_it_was_copied():
    """The third step waits for the first to be acknowledged."""
    ring = StepRing(MemfdArrays(), CAPACITY, ranks=2)
    for step in (1, 2):
        ring.write(step, inputs(4, 2))
    with pytest.raises(ValueError, match="not copied step 1"):
        ring.write(3, inputs(4, 2))
    read_elsewhere(ring, 1)
    ring.write(3, inputs(4, 2))


def test_a_step_beyond_the_capacity_is_refused():
    """Never written past its slot."""
    with pytest.raises(ValueError, match="token_ids of 9"):
        StepRing(MemfdArrays(), CAPACITY).write(1, inputs(9, 2))
