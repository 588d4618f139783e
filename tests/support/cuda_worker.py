"""A device worker with the CUDA ops on the emulator: `python -m cuda_worker [--alone] ...` as workers.process. `--alone`: as where a
GPU cannot map another's memory."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from cuda_on_cpu.place import EmulatedPlace

from workers import process
from workers.ops.cuda.ops import CudaOps

NAME = "workers.ops.cuda.choice"  # which needs CuPy and a GPU

if __name__ == "__main__":
    shares = "--alone" not in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--alone"]
    torch.set_num_threads(1)

    def gpu_ops(max_step_tokens: int, max_seats: int) -> CudaOps:
        return CudaOps(EmulatedPlace(shares=shares), max_step_tokens, max_seats)

    sys.modules[NAME] = ModuleType(NAME)
    sys.modules[NAME].gpu_ops = gpu_ops  # type: ignore[attr-defined]
    sys.exit(process.main())
