"""Everything that only a GPU can show, in one command of under eight minutes on one GPU:

    python tools/gpu_check.py [--out FOLDER] [--budget-s 420]

Needs PyTorch, CuPy and NumPy; pytest, g++, and helexa's own dependencies each add sections. Uses no network. Sections: kernels compiled for
this GPU; arrays shared by two processes; two ranks; graphs; the kernels' bits against the CPU emulator's; a random model of a billion
weights; times; weights streamed from the host; the kernel tests and whole steps on the device; `helexa verify`. gpu_check.json and
gpu_check.txt (short, for people) are written to the folder after each section, whatever happens. A section that fails or is left out says
why and does not stop the others; exit code 1 if one failed, 2 if there is nothing to check on.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import cuda_cases  # noqa: E402

REPEATS = 20


class LeftOutError(Exception):
    """A section that cannot run here; says what is missing."""


@dataclass
class Report:
    """Written to `folder` after each section."""

    folder: Path
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
        self.write()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "gpu_check.json").write_text(json.dumps(self.sections, indent=1) + "\n")
        lines = [line_of(name, result) for name, result in self.sections.items()]
        (self.folder / "gpu_check.txt").write_text("\n".join(lines) + "\n")

    def failed(self) -> bool:
        return any(result["status"] == "failed" for result in self.sections.values())


def line_of(name: str, result: dict[str, Any]) -> str:
    note = result.get("why") or result.get("note") or ""
    return f"{name:12s} {result['status']:9s} {result['seconds']:6.1f} s  {str(note).splitlines()[0] if note else ''}".rstrip()


def absent(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def needs(*names: str) -> None:
    if missing := absent(*names):
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


def compiled(_left: float) -> dict[str, Any]:
    """Every variant for this GPU, on all cores: what later sections would compile one by one."""
    import torch
    from cuda_places import CUBINS

    from kernels_cupy import compiler
    from kernels_cupy.registry import KERNELS

    CUBINS.mkdir(mode=0o700, exist_ok=True)
    major, minor = torch.cuda.get_device_capability(0)
    variants = [(kernel, defines) for kernel in KERNELS for defines in kernel.variants]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(lambda each: compiler.compile_kernel(*each, 10 * major + minor, CUBINS), variants))
    return {"note": f"{len(variants)} variants for compute capability {major}.{minor}"}


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
    package_of = {
        "layers": "torch",
        "recurrent": "torch",
        "moe": "torch",
        "linear": "gguf",
        "drawing": "msgspec",
        "exchange": "msgspec",
    }
    return chosen_tests(package_of, "gpu", min(left, 150), "tests/kernels/cuda")


def step_tests(left: float) -> dict[str, Any]:
    """Whole steps on the ops back end: chunks, company, captured and direct, logits that stay, every architecture."""
    needs("msgspec", "gguf")
    package_of = {"ops": "msgspec", "logits": "llguidance", "streaming": "hypothesis", "families": "transformers"}
    return chosen_tests(package_of, "test", min(left, 120), "tests/kernels")


def chosen_tests(package_of: dict[str, str], chosen: str, left: float, fixtures: str) -> dict[str, Any]:
    """The files whose package is here."""
    missing = {name: package for name, package in package_of.items() if absent(package)}
    files = [f"tests/kernels/cuda/test_cuda_{name}.py" for name in package_of if name not in missing]
    if not files:
        needs(*package_of.values())
    result = tests(files, chosen, left, fixtures)
    return {**result, "note": result["note"] + (f"; without {', '.join(sorted(set(missing.values())))}" if missing else "")}


def ipc(left: float) -> dict[str, Any]:
    from ipc import cuda_array

    if reason := cuda_array.probe():
        raise RuntimeError(reason)
    with contextlib.suppress(LeftOutError):
        return tests(["tests/unit/ipc/test_shared_arrays.py"], "cuda and not memfds", min(left, 90))
    return {"note": "two processes wrote one array"}


def ranks(_left: float) -> dict[str, Any]:
    """Two ranks, of two GPUs or of one, which put rows together in each other's memory, from graphs too."""
    needs("msgspec")
    import cuda_members
    import torch
    from group_members import Members

    region = 1 << 12
    with Members(2, cuda_members.decode, region) as group:
        made, replays, remedy = cuda_members.decode(group.group, region)
    if remedy or made != [cuda_members.expected(3)] * len(made) or not replays:
        raise RuntimeError(remedy or f"rows differ, or no step came from a graph ({replays} replays)")
    count = torch.cuda.device_count()
    where = "two GPUs" if count > 1 else "one GPU, which takes turns: two GPUs are left out, there is one"
    return {"note": f"two ranks on {where}; {replays} steps from graphs"}


def same_bits(_left: float) -> dict[str, Any]:
    """Each kernel on the GPU and on the emulator: equal bytes, as nothing in them depends on the machine."""
    if shutil.which("g++") is None:
        raise LeftOutError("no g++ for the emulator")
    import torch
    from cuda_on_cpu.emulator import Emulator
    from cuda_places import gpu

    device, emulator, different, cases = gpu(), Emulator(), [], cuda_cases.cases()
    for name, make in cases.items():
        run, inputs = make()
        here = run(emulator, *(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))
        there = run(device, *(value.cuda() if isinstance(value, torch.Tensor) else value for value in inputs)).cpu()
        if here.numpy().tobytes() != there.numpy().tobytes():
            share = float((here != there).float().mean())
            different.append(f"{name} ({share:.2%} of {here.numel()})")
    if different:
        raise RuntimeError(f"bits differ from the emulator's: {', '.join(different)}")
    return {"note": f"{len(cases)} kernels: bits as on the emulator"}


def graphs(_left: float) -> dict[str, Any]:
    """A captured chain of kernels, replayed on other inputs, gives the bits that it gives launched one by one."""
    import torch
    from cuda_places import gpu

    from kernels_cupy.rms_norm.launcher import rms_norm

    device, weight = gpu(), torch.ones(512, device="cuda")
    x = torch.randn(4, 512, device="cuda")

    def chain() -> torch.Tensor:
        value = x
        for _ in range(100):
            value = rms_norm(device, value, weight, 1e-5, torch.empty_like(value)) * 1.5
        return value

    chain()
    results: list[torch.Tensor] = []
    replay = device.capture(lambda: results.append(chain()))
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
    from cuda_places import gpu

    found, deadline = {}, time.monotonic() + min(left, 60) - 5
    for name, make in cuda_cases.benchmarks(gpu()).items():
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


def model(left: float) -> dict[str, Any]:
    """A billion random weights, in float16: one sequence's bits in any company and from graphs, draws on the device, and speeds."""
    needs("msgspec")
    import cuda_model
    from cuda_places import gpu
    from random_llama import Shape

    deadline = time.monotonic() + min(left, 100)
    with tempfile.TemporaryDirectory(prefix="helexa-random-") as folder:
        return cuda_model.check(gpu(), Path(folder), Shape(), cuda_model.Plan(), lambda: deadline - time.monotonic())


def streaming(left: float) -> dict[str, Any]:
    """Half of a model's weights streamed from the host's memory: the same bits, and bytes for a token that fall as 1 / N."""
    needs("msgspec")
    if left < 40:
        raise LeftOutError(f"{left:.0f} s left, it wants 40; raise --budget-s")
    sys.path.append(str(ROOT / "tools"))
    from cuda_model import Plan
    from cuda_places import gpu
    from random_llama import Shape
    from streaming_sweep import sweep

    with tempfile.TemporaryDirectory(prefix="helexa-random-") as folder:
        found = sweep(gpu(), Path(folder), Shape(layers=6), Plan(32, 8, (1, 2, 4, 8)), 0.5)
    return {"sweep": found, "note": "; ".join(f"x{entry['streams']} {entry['tokens_per_s']} tok/s" for entry in found)}


SERVICE = ("msgspec", "zmq", "msgpack", "falcon", "gunicorn", "gguf", "tokenizers", "jinja2", "prometheus_client", "llguidance")


def verify(left: float) -> dict[str, Any]:
    """`helexa verify --quick` of a random model of a billion weights, in Q8_0: replies of whole services on the GPU."""
    needs(*SERVICE)
    if left < 60:
        raise LeftOutError(f"{left:.0f} s left, it wants 60; raise --budget-s")
    from tiny_model import write_tiny_model

    sizes = {"layers": 16, "heads": 32, "kv_heads": 8, "head_dim": 64, "hidden": 8192, "context": 2048}
    with tempfile.TemporaryDirectory(prefix="helexa-random-") as folder:
        path = write_tiny_model(Path(folder, "random.gguf"), quant="Q8_0", alike=True, **sizes)
        Path(folder, "helexa.toml").write_text('[devices]\nuse = "cuda:0"\n')
        return verified(path, Path(folder, "helexa.toml"), left - 20)


def verified(path: Path, config: Path, left: float) -> dict[str, Any]:
    """What `helexa verify` says of a model file: a failure where a reply differs. That a setting was not seen at work is said."""
    command = [sys.executable, "-m", "helexa.cli", "verify", str(path), "--config", str(config), "--offline", "--quick", "--json"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer within {left:.0f} s: {str(error.stderr)[-2000:]}") from None
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"helexa verify ended with {done.returncode}: {(done.stdout + done.stderr)[-4000:]}") from None
    differ = [setting["name"] for setting in document["settings"] if setting["mismatches"]]
    if differ:
        raise RuntimeError(f"replies differ: {', '.join(differ)}\n{done.stdout}")
    unseen = [setting["name"] for setting in document["settings"] if setting["verdict"] != "same"]
    note = f"{document['comparisons']} replies and logits are the same; {document['ops']}"
    return {"verify": document, "note": note + (f"; not seen at work: {', '.join(unseen)}" if unseen else "")}


SECTIONS: dict[str, Callable[[float], dict[str, Any]]] = {
    "environment": environment,
    "compiled": compiled,
    "ipc": ipc,
    "ranks": ranks,
    "graphs": graphs,
    "same bits": same_bits,
    "model": model,
    "times": times,
    "streaming": streaming,
    "kernel tests": kernel_tests,
    "step tests": step_tests,
    "verify": verify,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the two reports")
    parser.add_argument("--budget-s", type=float, default=420.0, help="seconds for all of it")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections alone")
    options = parser.parse_args()
    report, deadline = Report(options.out), time.monotonic() + options.budget_s
    if why := nothing_to_check_on():
        report.sections["environment"] = {"status": "left out", "why": why, "seconds": 0.0}
        print(line_of("environment", report.sections["environment"]), flush=True)
        report.write()
        return 2
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # of the processes that sections start
    for name, section in SECTIONS.items():
        if not options.only or name in options.only:
            report.run(name, section, deadline - time.monotonic())
    return int(report.failed())


def nothing_to_check_on() -> str:
    """Why no section can run, in one line; empty where they can."""
    if missing := absent("torch", "cupy", "numpy"):
        return f"{', '.join(missing)} not installed; this check needs PyTorch, CuPy and NumPy"
    try:
        import torch

        found = torch.cuda.is_available()
    except Exception as error:  # a broken installation is a finding too
        return f"PyTorch cannot be used: {type(error).__name__}: {error}"
    return "" if found else "PyTorch finds no GPU"


if __name__ == "__main__":
    sys.exit(main())
