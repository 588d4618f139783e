"""Everything that only a GPU can show, in one command of under eight minutes on one GPU:

    python tools/gpu_check.py [--out FOLDER] [--budget-s 420]

Needs PyTorch, CuPy and NumPy; pytest, g++ and msgspec each add sections. Uses no network. Sections: the kernel tests on the device; the
kernels' bits against the CPU emulator's; arrays shared by two processes; graphs; and times. Writes gpu_check.json and gpu_check.txt
(short, for people) to the folder. A section that fails or is left out says why and does not stop the others; exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

REPEATS = 20


@dataclass(frozen=True)
class Sizes:
    """What is timed: a square linear, logits, and positions that a row attends to."""

    width: int = 4096
    vocab: int = 151_936
    context: int = 4096
    rows: tuple[int, ...] = (1, 8, 64, 512)


class LeftOutError(Exception):
    """A section that cannot run here; says what is missing."""


@dataclass
class Report:
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, name: str, section: Callable[[float], dict[str, Any]], seconds_left: float) -> None:
        started, result = time.monotonic(), {}
        try:
            if seconds_left < 10:
                raise LeftOutError("no time left; raise --budget-s")
            result = {"status": "ok", **section(seconds_left)}
        except LeftOutError as error:
            result = {"status": "left out", "why": str(error)}
        except Exception as error:
            result = {"status": "failed", "why": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        result["seconds"] = round(time.monotonic() - started, 1)
        self.sections[name] = result
        print(line_of(name, result), flush=True)


def line_of(name: str, result: dict[str, Any]) -> str:
    note = result.get("why") or result.get("note") or ""
    return f"{name:12s} {result['status']:9s} {result['seconds']:6.1f} s  {str(note).splitlines()[0] if note else ''}".rstrip()


def needs(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise LeftOutError(f"{', '.join(missing)} not installed")


# ---- sections


def environment(_left: float) -> dict[str, Any]:
    import cupy
    import torch

    from kernels_cupy import compiler

    properties = torch.cuda.get_device_properties(0)
    found = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "nvrtc": ".".join(map(str, compiler.version())),
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": cupy.cuda.runtime.driverGetVersion(),
    }
    return {**found, "note": f"{found['gpu']}, capability {found['capability']}, torch {found['torch']}, CuPy {found['cupy']}"}


def tests(paths: list[str], chosen: str, left: float, fixtures: str = "tests/kernels/cuda") -> dict[str, Any]:
    """Runs pytest on files, with the fixtures from this folder down alone, and reads what it counted."""
    needs("pytest")
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "--maxfail=20", "-p", "no:cacheprovider", "--confcutdir", str(ROOT / fixtures)]
        command = [sys.executable, "-m", "pytest", *options, "-k", chosen, *paths]
        log = Path(folder, "log")
        with log.open("wb") as out, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, timeout=left - 5, stdin=subprocess.DEVNULL)
        text = log.read_text(errors="replace")
    closing = re.findall(r"(?m)^=*\s*(.*\d+ (?:passed|failed|error|skipped).* in [\d.]+s.*?)\s*=*$", text)
    if not closing or "passed" not in closing[-1] or "failed" in closing[-1] or "error" in closing[-1]:
        raise RuntimeError((closing[-1] if closing else "pytest did not finish") + "\n" + text[-6000:])
    return {"note": closing[-1]}


def kernel_tests(left: float) -> dict[str, Any]:
    """Those whose packages are here."""
    package_of = {"layers": "torch", "recurrent": "torch", "linear": "gguf", "drawing": "msgspec"}
    names = [name for name, package in package_of.items() if importlib.util.find_spec(package)]
    result = tests([f"tests/kernels/cuda/test_cuda_{name}.py" for name in names], "gpu", min(left, 240))
    absent = sorted({package for name, package in package_of.items() if name not in names})
    return {**result, "note": result["note"] + (f"; without {', '.join(absent)}" if absent else "")}


def step_tests(left: float) -> dict[str, Any]:
    """Whole steps on the ops back end: chunks, company, captured and direct."""
    needs("msgspec")
    return tests(["tests/kernels/cuda/test_cuda_ops.py"], "test", min(left, 90), "tests/kernels")


def ipc(left: float) -> dict[str, Any]:
    from ipc import cuda_array

    if reason := cuda_array.probe():
        raise RuntimeError(reason)
    with contextlib.suppress(LeftOutError):
        return tests(["tests/unit/ipc/test_shared_arrays.py"], "cuda and not memfds", min(left, 90))
    return {"note": "two processes wrote one array"}


def same_bits(_left: float) -> dict[str, Any]:
    """Each kernel on the GPU and on the emulator: equal bytes, as nothing in them depends on the machine."""
    if shutil.which("g++") is None:
        raise LeftOutError("no g++ for the emulator")
    import torch
    from cuda_on_cpu.emulator import Emulator

    from workers.ops.cuda.gpu import Gpu

    gpu, emulator, different = Gpu(0), Emulator(), []
    for name, make in cases().items():
        run, inputs = make()
        here = run(emulator, *(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))
        there = run(gpu, *(value.cuda() if isinstance(value, torch.Tensor) else value for value in inputs)).cpu()
        if here.numpy().tobytes() != there.numpy().tobytes():
            share = float((here != there).float().mean())
            different.append(f"{name} ({share:.2%} of {here.numel()})")
    if different:
        raise RuntimeError(f"bits differ from the emulator's: {', '.join(different)}")
    return {"note": f"{len(cases())} kernels: bits as on the emulator"}


def graphs(_left: float) -> dict[str, Any]:
    """A captured chain of kernels, replayed on other inputs, gives the bits that it gives launched one by one."""
    import torch

    from kernels_cupy.rms_norm.launcher import rms_norm
    from workers.ops.cuda.gpu import Gpu

    gpu, weight = Gpu(0), torch.ones(512, device="cuda")
    x = torch.randn(4, 512, device="cuda")

    def chain() -> torch.Tensor:
        value = x
        for _ in range(100):
            value = rms_norm(gpu, value, weight, 1e-5, torch.empty_like(value)) * 1.5
        return value

    chain()
    results: list[torch.Tensor] = []
    replay = gpu.capture(lambda: results.append(chain()))
    for _ in range(3):
        x.copy_(torch.randn(4, 512, device="cuda"))
        expected = chain()
        replay()
        torch.cuda.synchronize()
        if not torch.equal(expected, results[-1]):
            raise RuntimeError("a replay's bits differ from those of single launches")
    direct, replayed = milliseconds(chain), milliseconds(replay)
    return {
        "direct_ms": direct,
        "replay_ms": replayed,
        "note": f"100 links: {direct:.2f} ms launched, {replayed:.2f} ms replayed; equal bits",
    }


def times(left: float) -> dict[str, Any]:
    import torch

    from workers.ops.cuda.gpu import Gpu

    gpu, found, deadline = Gpu(0), {}, time.monotonic() + min(left, 120) - 10
    for name, make in benchmarks(gpu).items():
        if time.monotonic() > deadline:
            found[name] = {"left out": "no time"}
            continue
        work, moved = make()
        taken = milliseconds(work)
        found[name] = {"ms": round(taken, 4), **{unit: round(amount / taken, 1) for unit, amount in moved.items()}}
        torch.cuda.empty_cache()
    lines = "; ".join(f"{name} {value.get('ms', '-')} ms" for name, value in found.items())
    return {"times": found, "note": lines}


def milliseconds(work: Callable[[], Any]) -> float:
    """Of the fastest of a few runs, by the device's own clock."""
    import torch

    work()
    best = float("inf")
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best


# ---- what is compared and timed

Case = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def random_weight(weight_format: str, outputs: int, inputs: int) -> Any:
    import torch

    from kernels_cupy.linear.launcher import BLOCKS, Weight

    block, size = BLOCKS[weight_format]
    generator = torch.Generator().manual_seed(1)
    data = torch.randint(0, 256, (outputs, inputs // block * size), dtype=torch.uint8, generator=generator)
    if weight_format in ("F32", "F16", "BF16"):
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[weight_format]
        data = torch.randn(outputs, inputs, generator=generator).to(kind).view(torch.uint8)
    else:  # scales are halves at the block's start, in Q6_K at its end: small numbers
        at = size - 2 if weight_format == "Q6_K" else 0
        blocks = data.view(-1, size)
        blocks[:, at + 1] = 0x24
        if weight_format in ("Q4_1", "Q4_K"):
            blocks[:, 3] = 0x24
    return Weight(data, weight_format, inputs)


def cases() -> dict[str, Case]:
    """One small input of each kind of kernel."""
    import torch

    from kernels_cupy.attention.launcher import attention
    from kernels_cupy.causal_conv.launcher import Sequences, causal_conv
    from kernels_cupy.elementwise.launcher import soft_cap
    from kernels_cupy.gdn_gating.launcher import gdn_gating
    from kernels_cupy.gdn_recurrence.launcher import gdn_recurrence
    from kernels_cupy.linear.launcher import BLOCKS, Weight, linear
    from kernels_cupy.rms_norm.launcher import rms_norm
    from kernels_cupy.rope_kv.launcher import Paged
    from kernels_cupy.silu_mul.launcher import gelu_tanh_mul, silu_mul

    torch.manual_seed(3)

    def int32(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    def empty(x: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.empty(shape or x.shape, device=x.device)

    def of_linear(name: str) -> Case:
        weight = random_weight(name, 33, 512)
        run = lambda device, x, data: linear(device, x, Weight(data, name, 512), empty(x, len(x), 33))  # noqa: E731
        return lambda: (run, (torch.randn(9, 512), weight.data))

    def of_attention() -> Any:
        def run(device: Any, q: Any, keys: Any, values: Any, positions: Any, sequences: Any, tables: Any) -> Any:
            return attention(device, q, Paged(keys, values, positions, sequences, tables), empty(q), None, 60, 20.0)

        cache = [torch.randn(9, 2, 16, 64).half() for _ in range(2)]
        tables = torch.arange(9, dtype=torch.int32)[None]
        return run, (torch.randn(3, 256), *cache, int32(140, 17, 0), int32(0, 0, 0), tables)

    def of_recurrence() -> Any:
        def run(device: Any, qkv: Any, gates: Any, state: Any, *where: Any) -> Any:
            return gdn_recurrence(device, qkv, gates, state, Sequences(*where), 1, False, empty(qkv, 5, 256))

        gates = torch.cat([torch.rand(5, 2), -torch.rand(5, 2)], dim=1)
        return run, (torch.randn(5, 512), gates, torch.randn(1, 2, 128, 128), int32(0, 5), int32(4, 5, 6, 7, 8), int32(0))

    def of_conv() -> Any:
        def run(device: Any, x: Any, weight: Any, state: Any, *where: Any) -> Any:
            return causal_conv(device, x, weight, state, Sequences(*where), empty(x))

        return run, (
            torch.randn(5, 300),
            torch.randn(4, 300),
            torch.randn(1, 3, 300),
            int32(0, 5),
            int32(4, 5, 6, 7, 8),
            int32(0),
        )

    def of_rows(op: Any, columns: int) -> Case:
        return lambda: (lambda device, x: op(device, x, empty(x, len(x), columns)), (torch.randn(7, 600) * 5,))

    gating = lambda device, ba, decay, bias: gdn_gating(device, ba, decay, bias, empty(ba))  # noqa: E731
    norm = lambda device, x, weight: rms_norm(device, x, weight, 1e-5, empty(x))  # noqa: E731
    return {
        **{f"linear {name}": of_linear(name) for name in BLOCKS},
        "attention": of_attention,
        "gdn_recurrence": of_recurrence,
        "causal_conv": of_conv,
        "gdn_gating": lambda: (gating, (torch.randn(5, 40) * 9, -torch.rand(20), torch.randn(20))),
        "rms_norm": lambda: (norm, (torch.randn(5, 700), torch.randn(700))),
        "silu_mul": of_rows(silu_mul, 300),
        "gelu_tanh_mul": of_rows(gelu_tanh_mul, 300),
        "soft_cap": of_rows(lambda device, x, out: soft_cap(device, x, 10.0, out), 600),
    }


def benchmarks(
    gpu: Any, where: str = "cuda", sizes: Sizes = Sizes()
) -> dict[str, Callable[[], tuple[Callable[[], Any], dict[str, float]]]]:
    """Work, and what of it per millisecond is worth saying: 1e6 bytes (GB/s) and 1e9 operations (TFLOP/s)."""
    import torch

    from kernels_cupy.argmax.launcher import argmax
    from kernels_cupy.attention.launcher import attention
    from kernels_cupy.keyed_sampling.launcher import Rules, keyed_sample
    from kernels_cupy.linear.launcher import Weight, linear
    from kernels_cupy.rope_kv.launcher import Paged

    def of_linear(name: str, rows: int) -> Any:
        def make() -> Any:
            made = random_weight(name, sizes.width, sizes.width)
            weight = Weight(made.data.to(where), name, sizes.width)
            x, out = torch.randn(rows, sizes.width, device=where), torch.empty(rows, sizes.width, device=where)
            moved = {"GB/s": made.data.numel() / 1e6, "TFLOP/s": 2 * rows * sizes.width**2 / 1e9}
            return lambda: linear(gpu, x, weight, out), moved

        return make

    def of_attention(rows: int) -> Any:
        def make() -> Any:
            blocks = rows * sizes.context // 16
            keys, values = (torch.randn(blocks, 8, 16, 128, device=where, dtype=torch.float16) for _ in range(2))
            tables = torch.arange(blocks, dtype=torch.int32, device=where).view(rows, -1)
            at = torch.full((rows,), sizes.context - 1, dtype=torch.int32, device=where)
            paged = Paged(keys, values, at, torch.arange(rows, dtype=torch.int32, device=where), tables)
            q = torch.randn(rows, 32 * 128, device=where)
            out = torch.empty_like(q)
            return lambda: attention(gpu, q, paged, out), {"GB/s": 2 * keys.numel() * 2 / 1e6}

        return make

    def of_sampling(rows: int, top_k: int, top_p: float) -> Any:
        def make() -> Any:
            logits = torch.randn(rows, sizes.vocab, device=where) * 3
            numbers = [(1.0, torch.float32), (top_k, torch.int32), (top_p, torch.float32), (-float("inf"), torch.float32)]
            columns = [torch.full((rows,), value, dtype=kind, device=where) for value, kind in numbers]
            seed, position = (torch.arange(rows, dtype=kind, device=where) for kind in (torch.int64, torch.int32))
            return lambda: keyed_sample(gpu, logits, Rules(*columns, seed, position)), {}

        return make

    def of_argmax(rows: int) -> Any:
        def make() -> Any:
            logits = torch.randn(rows, sizes.vocab, device=where)
            return lambda: argmax(gpu, logits), {"GB/s": logits.numel() * 4 / 1e6}

        return make

    return {
        **{f"linear {name} x{rows}": of_linear(name, rows) for name in ("Q4_1", "Q4_K", "Q8_0", "BF16") for rows in sizes.rows},
        **{f"attention x{rows}": of_attention(rows) for rows in (1, 16)},
        **{f"sample x{rows}": of_sampling(rows, 0, 1.0) for rows in (1, 16)},
        **{f"sample top-k/p x{rows}": of_sampling(rows, 50, 0.9) for rows in (1, 16)},
        **{f"argmax x{rows}": of_argmax(rows) for rows in (1, 16)},
    }


SECTIONS: dict[str, Callable[[float], dict[str, Any]]] = {
    "environment": environment,
    "ipc": ipc,
    "graphs": graphs,
    "same bits": same_bits,
    "kernel tests": kernel_tests,
    "step tests": step_tests,
    "times": times,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the two reports")
    parser.add_argument("--budget-s", type=float, default=420.0, help="seconds for all of it")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections alone")
    options = parser.parse_args()
    for name in ("torch", "cupy", "numpy"):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed; this check needs PyTorch, CuPy and NumPy", file=sys.stderr)
            return 2
    import torch

    if not torch.cuda.is_available():
        print("PyTorch finds no GPU; this check needs one", file=sys.stderr)
        return 2
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # of the processes that sections start
    report, deadline = Report(), time.monotonic() + options.budget_s
    for name, section in SECTIONS.items():
        if not options.only or name in options.only:
            report.run(name, section, deadline - time.monotonic())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_check.json").write_text(json.dumps(report.sections, indent=1) + "\n")
    lines = [line_of(name, result) for name, result in report.sections.items()]
    (options.out / "gpu_check.txt").write_text("\n".join(lines) + "\n")
    return int(any(result["status"] == "failed" for result in report.sections.values()))


if __name__ == "__main__":
    sys.exit(main())
