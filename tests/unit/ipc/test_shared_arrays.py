"""The contract of shared arrays on memfds, between real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from ipc.memfd_array import MemfdArrays
from ipc.shared_array import ArrayHandle, IpcError

CHILD = """
import sys
from ipc.memfd_array import MemfdArrays
from ipc.shared_array import ArrayHandle, IpcError
allocation, offset, rows, columns, dtype = sys.argv[1:]
try:
    opened = MemfdArrays().open(ArrayHandle(bytes.fromhex(allocation), int(offset), (int(rows), int(columns)), dtype))
except IpcError as error:
    print("refused:", error)
    sys.exit()
opened.array += 1
print(opened.array.sum())
opened.close()
"""


def open_elsewhere(handle: ArrayHandle) -> str:
    arguments = [handle.allocation.hex(), str(handle.offset), *map(str, handle.shape), handle.dtype]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, cwd=os.getcwd(), check=True)
    return done.stdout.strip()


def test_another_process_sees_and_changes_the_same_memory():
    """Written here, read and changed there, seen here; at an offset."""
    allocation = MemfdArrays().allocate(4096)
    array = allocation.array((4, 8), "float32", 64)
    array[:] = np.arange(32).reshape(4, 8)
    assert open_elsewhere(allocation.export((4, 8), "float32", 64)) == str(np.arange(32).sum() + 32.0)
    assert array[0, 0] == 1 and array[3, 7] == 32
    assert not [name for name in os.listdir("/dev/shm") if "helexa" in name]


def test_a_handle_cannot_be_opened_where_it_was_made():
    """As with CUDA."""
    allocation = MemfdArrays().allocate(64)
    with pytest.raises(IpcError, match="exported it"):
        MemfdArrays().open(allocation.export((4,), "int32"))


def test_a_stale_or_forged_handle_is_refused():
    """Freed, of another process start, of a descriptor that is no such memory, or no handle at all."""
    allocation = MemfdArrays().allocate(64)
    handle = allocation.export((4, 4), "int32")
    allocation.close()
    assert open_elsewhere(handle).startswith("refused")
    assert open_elsewhere(ArrayHandle(b"x" * len(handle.allocation), 0, (4, 4), "int32")).startswith("refused")
    assert open_elsewhere(ArrayHandle(b"", 0, (4, 4), "int32")).startswith("refused")


@pytest.mark.parametrize(
    ("shape", "dtype", "offset"),
    [
        ((17,), "int32", 0),
        ((16,), "int32", 4),
        ((2,), "int64", 3),
        ((-1,), "int32", 0),
        ((1,), "object", 0),
        ((2**40, 2**40), "int8", 0),
    ],
)
def test_an_array_outside_its_allocation_is_refused(shape, dtype, offset):
    """Too long, misaligned, negative, of objects, or overflowing."""
    with pytest.raises(IpcError):
        MemfdArrays().allocate(64).array(shape, dtype, offset)


def test_memory_in_use_cannot_be_freed():
    """Closing under a living array raises, as freeing under a kernel's feet would crash."""
    allocation = MemfdArrays().allocate(64)
    array = allocation.array((4,), "int32")
    with pytest.raises(BufferError):
        allocation.close()
    del array
    allocation.close()
