"""The emulator itself: it refuses what CUDA forbids, and what a GPU would misread in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_on_cpu.emulator import Emulator, EmulatorError

from kernels_cupy.registry import Kernel, Limits

SOURCE = """
#define FULL_WARP 0xffffffffu
extern "C" __global__ void two_barriers(int* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        out[0] = 1;
        __syncthreads();
    }
}
extern "C" __global__ void early_end(int* out) {
    if (threadIdx.x >= 32) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void half_a_warp(int* out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(FULL_WARP, out[threadIdx.x], 3);
    __syncthreads();
}
extern "C" __global__ void unset_shared(float* out) {
    __shared__ float values[64];
    out[threadIdx.x] = values[threadIdx.x];
}
extern "C" __global__ void sized(int* out, float x, long long y) { out[threadIdx.x] = int(x) + int(y) + blockIdx.x; }
"""
ENTRIES = ("two_barriers", "early_end", "half_a_warp", "unset_shared", "sized")


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kernels")
    Path(folder, "broken").mkdir()
    Path(folder, "broken", "broken.cu").write_text(SOURCE)
    kernel, emulator = Kernel("broken", 64, ENTRIES, ((),), Limits(64)), Emulator(folder=folder)
    return lambda entry, *arguments, grid=(1,): emulator.launch(kernel, (), entry, grid, arguments)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("two_barriers", "line 8 meets the one at line 5"),
        ("early_end", "some threads of the block have ended"),
        ("half_a_warp", "none can go on"),
    ],
)
def test_broken_kernels_are_refused(launch: Any, entry: str, words: str) -> None:
    """Barriers that part of a block does not reach, and a warp collective whose lanes do not all come."""
    with pytest.raises(EmulatorError, match=words):
        launch(entry, torch.zeros(64, dtype=torch.int32))


def test_shared_memory_starts_as_nans(launch: Any) -> None:
    """What a kernel reads before it wrote it cannot look like a number."""
    out = torch.zeros(64)
    launch("unset_shared", out)
    assert out.isnan().all()


def test_arguments_are_held_to_the_parameters(launch: Any) -> None:
    """Numbers of another size or kind, bare Python numbers, tensors of another width, too few, an empty grid."""
    out, x, y = torch.zeros(64, dtype=torch.int32), np.float32(2), np.int64(3)
    launch("sized", out, x, y)
    assert out.tolist() == [5] * 64
    wrong: list[tuple[Any, ...]] = [(out, np.float64(2), y), (out, x, np.int32(3)), (out, 2.0, y), (out.long(), x, y), (out, x)]
    for arguments in wrong:
        with pytest.raises(EmulatorError, match="argument"):
            launch("sized", *arguments)
    with pytest.raises(EmulatorError, match="grid"):
        launch("sized", out, x, y, grid=(0,))
