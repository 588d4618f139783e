"""Runs the kernels that have barriers, once each on small inputs, under ThreadSanitizer: `watched_run.py KERNEL_FOLDER OP`.

A process of its own, as ThreadSanitizer must be loaded first; test_cuda_races.py starts it. Ends with its exit code for a race.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from cuda_on_cpu.emulator import Emulator

from kernels_cupy.argmax.launcher import argmax
from kernels_cupy.attention.launcher import attention
from kernels_cupy.causal_conv.launcher import Sequences
from kernels_cupy.gdn_recurrence.launcher import gdn_recurrence
from kernels_cupy.keyed_sampling.launcher import Rules, keyed_sample
from kernels_cupy.moe_routing.launcher import Routing, route
from kernels_cupy.rms_norm.launcher import add_rms_norm, rms_norm
from kernels_cupy.rope_kv.launcher import Paged


def floats(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def run_argmax(device: Emulator) -> None:
    argmax(device, floats(2, 600))


def run_keyed_sampling(device: Emulator) -> None:
    rules = Rules(
        floats(2).abs() + 1,
        int32(0, 9),
        torch.tensor([0.7, 0.7]),
        torch.full((2,), -torch.inf),
        torch.zeros(2).long(),
        int32(4, 5),
    )
    keyed_sample(device, floats(2, 600), rules)


def run_rms_norm(device: Emulator) -> None:
    x, weight = floats(2, 300), floats(300)
    rms_norm(device, x, weight, 1e-5, torch.empty_like(x))
    add_rms_norm(device, x, floats(2, 300), weight, 1e-5, torch.empty_like(x), torch.empty_like(x))


def run_attention(device: Emulator) -> None:
    cache = [floats(9, 1, 16, 64).half() for _ in range(2)]
    paged = Paged(*cache, int32(130, 3), int32(0, 0), torch.arange(9, dtype=torch.int32)[None])
    q = floats(2, 128)
    attention(device, q, paged, torch.empty_like(q))
    attention(device, q, paged, torch.empty_like(q), partials=torch.empty(2, 2, 2, 66))


def run_gdn_recurrence(device: Emulator) -> None:
    where = Sequences(int32(0, 3), int32(4, 5, 6), int32(0))
    gdn_recurrence(device, floats(3, 384), floats(3, 2), floats(1, 1, 128, 128), where, 1, False, torch.empty(3, 128))


def run_moe_routing(device: Emulator) -> None:
    route(device, floats(40, 40), torch.zeros(40, dtype=torch.int32), True, Routing.empty(40, 40, 8, "cpu"))


RUNS = {
    "argmax": run_argmax,
    "keyed_sampling": run_keyed_sampling,
    "rms_norm": run_rms_norm,
    "attention": run_attention,
    "gdn_recurrence": run_gdn_recurrence,
    "moe_routing": run_moe_routing,
}

if __name__ == "__main__":
    RUNS[sys.argv[2]](Emulator("forward", folder=Path(sys.argv[1]), watched=True))
    print("done")
