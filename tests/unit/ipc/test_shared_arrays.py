"""The contract of shared arrays, between real processes: on memfds, by CUDA IPC on a stand-in for CuPy, and by CUDA IPC on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ipc import cuda_array
from ipc.cuda_array import CudaArrays
from ipc.shared_array import ArrayHandle, IpcError, SharedArrays

ROOT = Path(cuda_array.__file__).resolve().parents[1]
MAKERS = {
    "memfd": "from ipc.memfd_array import MemfdArrays; arrays = MemfdArrays()",
    "cuda on memfds": "import memfd_cupy; from ipc.cuda_array import CudaArrays; arrays = CudaArrays(memfd_cupy)",
    "cuda": "from ipc.cuda_array import CudaArrays; arrays = CudaArrays()",
}
CHILD = """
import sys
from ipc.shared_array import ArrayHandle, IpcError
allocation, offset, rows, columns, dtype = sys.argv[1:]
try:
    opened = arrays.open(ArrayHandle(bytes.fromhex(allocation), int(offset), (int(rows), int(columns)), dtype))
except IpcError as error:
    print("refused:", error)
    sys.exit()
opened.array += 1
print(opened.array.sum())
opened.close()
"""


def _has_gpu() -> bool:
    return os.path.exists("/dev/nvidiactl") and subprocess.run([sys.executable, "-c", "import cupy"]).returncode == 0


@pytest.fixture(params=[name for name in MAKERS if name != "cuda" or _has_gpu()])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def arrays(kind: str) -> SharedArrays:
    scope: dict[str, SharedArrays] = {}
    exec(MAKERS[kind], scope)
    return scope["arrays"]


def open_elsewhere(kind: str, handle: ArrayHandle) -> str:
    arguments = [handle.allocation.hex(), str(handle.offset), *map(str, handle.shape), handle.dtype]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    command = [sys.executable, "-c", f"{MAKERS[kind]}\n{CHILD}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    return done.stdout.strip()


def test_another_process_sees_and_changes_the_same_memory(kind, arrays):
    """Written here, read and changed there, seen here; at an offset."""
    allocation = arrays.allocate(4096)
    array = allocation.array((4, 8), "float32", 64)
    for row in range(4):
        array[row] = row
    assert open_elsewhere(kind, allocation.export((4, 8), "float32", 64)) == str(8.0 * (0 + 1 + 2 + 3) + 32.0)
    assert float(array[0, 0]) == 1 and float(array[3, 7]) == 4
    assert not [name for name in os.listdir("/dev/shm") if "helexa" in name]


def test_a_handle_cannot_be_opened_where_it_was_made(arrays):
    """As with CUDA."""
    allocation = arrays.allocate(64)
    with pytest.raises(IpcError, match="exported it"):
        arrays.open(allocation.export((4,), "int32"))


def test_a_stale_or_forged_handle_is_refused(kind, arrays):
    """Freed, of another process start, of a descriptor that is no such memory, or no handle at all."""
    allocation = arrays.allocate(64)
    handle = allocation.export((4, 4), "int32")
    allocation.close()
    assert open_elsewhere(kind, handle).startswith("refused")
    assert open_elsewhere(kind, ArrayHandle(b"x" * len(handle.allocation), 0, (4, 4), "int32")).startswith("refused")
    assert open_elsewhere(kind, ArrayHandle(b"", 0, (4, 4), "int32")).startswith("refused")
    other_start = bytearray(handle.allocation)
    other_start[8 + (4 if kind == "memfd" else 0)] ^= 1
    assert "gone" in open_elsewhere(kind, ArrayHandle(bytes(other_start), 0, (4, 4), "int32"))


def test_what_an_importer_asks_for_is_held_to_the_allocation(kind, arrays):
    """A handle whose offset or shape was changed on the way opens nothing past the end."""
    handle = arrays.allocate(64).export((4, 4), "int32")
    assert open_elsewhere(kind, ArrayHandle(handle.allocation, 64, (4, 4), "int32")).startswith("refused")
    assert open_elsewhere(kind, ArrayHandle(handle.allocation, 0, (4, 5), "int32")).startswith("refused")


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
def test_an_array_outside_its_allocation_is_refused(arrays, shape, dtype, offset):
    """Too long, misaligned, negative, of objects, or overflowing."""
    for make in (arrays.allocate(64).array, arrays.allocate(64).export):
        with pytest.raises(IpcError):
            make(shape, dtype, offset)


def test_memory_in_use_cannot_be_freed(arrays):
    """Closing under a living array raises, as freeing under a kernel's feet would crash."""
    allocation = arrays.allocate(64)
    array = allocation.array((4,), "int32")
    with pytest.raises(BufferError):
        allocation.close()
    del array
    allocation.close()
    allocation.close()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module whose processes probe on the stand-in."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")]))
    return "memfd_cupy"


def test_the_probe_opens_for_real(stand_in):
    """Two processes, an array written in both."""
    assert cuda_array.probe(stand_in) == ""


def test_the_probe_notices_memory_that_is_not_shared(stand_in, tmp_path, monkeypatch):
    """A device on which another process gets memory of its own."""
    broken = "import sys, memfd_cupy as m\nfrom ipc.cuda_array import CudaArrays, main\n"
    broken += "m.runtime.ipcOpenMemHandle = lambda handle, flags: m.malloc(4096)\n"
    broken += "m.runtime.ipcCloseMemHandle = m.free\nsys.exit(main(sys.argv[1:], CudaArrays(m), 'broken_cupy'))\n"
    (tmp_path / "broken_cupy.py").write_text(broken)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    assert "but it holds [41, 41, 41, 41] here" in cuda_array.probe("broken_cupy")


@pytest.mark.skipif(_has_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_probe_says_what_is_missing():
    """In one line, whatever it is."""
    reason = cuda_array.probe()
    assert reason and "\n" not in reason


def test_too_much_device_memory_is_a_memory_error():
    """Not an error of CUDA's."""
    import memfd_cupy

    with pytest.raises(MemoryError):
        CudaArrays(memfd_cupy).allocate(1 << 50)


def test_devices_are_not_touched_by_the_import():
    """`ipc.cuda_array` imports CuPy only when it is used."""
    code = "import sys, ipc.cuda_array; sys.exit('cupy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_arrays_over_closed_memory_are_refused():
    """A closed CUDA allocation hands out nothing."""
    import memfd_cupy

    allocation = CudaArrays(memfd_cupy).allocate(64)
    assert np.dtype("int32").itemsize * 4 == allocation.array((4,), "int32").nbytes
    allocation.close()
    with pytest.raises(IpcError, match="closed"):
        allocation.array((4,), "int32")
