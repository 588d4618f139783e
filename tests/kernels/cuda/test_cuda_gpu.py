"""The code that drives a GPU, with stand-ins for CuPy and for torch's device functions that run on the emulator; and tools/gpu_check."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cuda_cases
import cuda_model
import cuda_places
import numpy as np
import pytest
import torch
from cuda_on_cpu.emulator import Emulator
from cuda_on_cpu.place import EmulatedPlace
from random_llama import Shape
from tiny_model import write_tiny_model

from helexa.errors import StartError
from kernels_cupy import compiler
from kernels_cupy.registry import KERNELS
from kernels_cupy.rms_norm.launcher import rms_norm

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="stand-ins for a GPU are for machines without one")
ROOT = Path(compiler.__file__).resolve().parents[1]


class Driver:
    """Stands in for the driver: modules by their cubin's path, launches noted with the stream that was current."""

    def __init__(self) -> None:
        self.stream = "torch's"
        self.current: str | None = None
        self.launches: list[tuple[str, str, tuple[int, ...], tuple[int, ...], str | None]] = []
        self.copies: list[str] = []

    def raw_module(self, path: str) -> Any:
        assert Path(path).suffix == ".cubin" and Path(path).exists()

        def get_function(name: str) -> Any:
            def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
                assert all(isinstance(argument, np.generic) for argument in arguments)
                self.launches.append((Path(path).name.split("-")[0], name, grid, block, self.current))

            return launch

        return SimpleNamespace(get_function=get_function)

    def copy_stream(self) -> Any:
        """Notes what it is told."""
        return SimpleNamespace(
            wait_stream=lambda stream: self.copies.append(f"behind {stream}"),
            record_event=lambda: self.copies.append("noted") or SimpleNamespace(),
        )

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.copies.append("beside")
        yield
        self.copies.append("back")

    def set_stream(self, stream: str) -> None:
        self.stream = stream

    @contextlib.contextmanager
    def use(self, stream: str) -> Iterator[None]:
        self.current = stream
        yield
        self.current = None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    cupy = ModuleType("cupy")
    cupy.RawModule = made.raw_module  # type: ignore[attr-defined]
    stream = SimpleNamespace(from_external=made.use)
    cupy.cuda = SimpleNamespace(Stream=stream, Device=lambda index: SimpleNamespace(use=lambda: None))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "workers.ops.cuda.gpu", raising=False)

    class Graph:
        def replay(self) -> None:
            made.launches.append(("replay", "", (), (), None))

    @contextlib.contextmanager
    def graph(_graph: Graph, pool: int) -> Iterator[None]:
        made.stream = "the capture's"
        yield
        made.stream = "torch's"

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "get_device_capability": lambda index: (9, 0),
        "get_device_name": lambda index: "Stand-in",
        "graph_pool_handle": lambda: 7,
        "current_stream": lambda: made.stream,
        "set_stream": made.set_stream,
        "Stream": made.copy_stream,
        "stream": made.on,
        "Event": SimpleNamespace,
        "synchronize": lambda: None,
        "CUDAGraph": Graph,
        "graph": graph,
        "mem_get_info": lambda: (1000, 2000),
        "memory_reserved": lambda: 300,
        "memory_allocated": lambda: 100,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return made


def gpu_of(_driver: Driver, tmp_path: Path, index: int = 0) -> Any:
    from workers.ops.cuda.gpu import Gpu

    return Gpu(index, tmp_path)


def run_norm(gpu: Any) -> torch.Tensor:
    x = torch.ones(2, 64)
    return rms_norm(gpu, x, torch.ones(64), 1e-5, torch.empty_like(x))


def needs_nvrtc() -> None:
    try:
        compiler.version()
    except compiler.CompileError as error:
        pytest.skip(str(error))


def test_a_launch(driver: Driver, tmp_path: Path) -> None:
    """Compiled once for the device, with the registry's threads, on the stream that torch names at that moment."""
    needs_nvrtc()
    gpu = gpu_of(driver, tmp_path)
    run_norm(gpu)
    run_norm(gpu)
    assert driver.launches == [("rms_norm", "rms_norm", (2,), (256,), "torch's")] * 2
    assert len(list(tmp_path.glob("*.cubin"))) == 1
    assert (gpu.torch_device, gpu.name, gpu.free_bytes()) == ("cuda:0", "CUDA, Stand-in", 1200)


def test_a_capture(driver: Driver, tmp_path: Path) -> None:
    """Launches go to the capture's stream; a failure in it is a CaptureError."""
    needs_nvrtc()
    gpu = gpu_of(driver, tmp_path)
    replay = gpu.capture(lambda: run_norm(gpu))
    replay()
    assert [launch[4] for launch in driver.launches] == ["the capture's", None]

    def fails() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(Exception, match=r"^operation not permitted when stream is capturing$") as error:
        gpu.capture(fails)
    assert type(error.value).__name__ == "CaptureError" and driver.stream == "torch's"


def test_a_copy_beside_the_kernels(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what was launched, runs on a stream of its own, and is waited for by what is launched later."""
    gpu, target = gpu_of(driver, tmp_path), torch.zeros(4)
    copy = gpu.copy_ahead(target, torch.ones(4))
    assert target.sum() == 4 and driver.copies == ["behind torch's", "beside", "noted", "back"]
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_event=waited.append))
    gpu.wait_for(copy)
    assert waited == [copy]


def test_devices_that_cannot_be_used(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, one too old, no compiler: each says so."""
    with pytest.raises(StartError, match="torch finds 1 GPUs"):
        gpu_of(driver, tmp_path, 1)
    gpu = gpu_of(driver, tmp_path)
    monkeypatch.setattr(compiler, "nvrtc", lambda: (_ for _ in ()).throw(compiler.CompileError("NVRTC is not installed")))
    with pytest.raises(StartError, match="NVRTC is not installed"):
        run_norm(gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    with pytest.raises(StartError, match=r"compute capability 7\.5"):
        gpu_of(driver, tmp_path)


def test_the_choice_of_a_gpus_worker(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda` gives the CUDA ops on the first GPU that the process sees, with its memory."""
    monkeypatch.delitem(sys.modules, "workers.ops.cuda.choice", raising=False)
    from workers.ops.choice import choose_ops

    ops: Any = choose_ops("auto", 1, 64, 8, "cuda")
    assert (ops.kind, ops.name, ops.device_memory(0)) == ("cuda", "CUDA, Stand-in", (0, 1080, "90% of the GPU's free memory"))
    assert ops.device_memory(500) == (0, 500, "memory.limit_mib")


@pytest.fixture(scope="module")
def gpu_check() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools" / "gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


def test_every_kernel_has_a_case_or_a_benchmark(gpu_check: Any) -> None:
    """What gpu_check compares and times is well formed: it runs here, on the emulator, in small."""
    seen: set[str] = set()

    class Watching(EmulatedPlace):
        def launch(self, kernel: Any, *rest: Any) -> None:
            seen.add(kernel.name)
            super().launch(kernel, *rest)

    place = Watching()
    for name, make in cuda_cases.cases().items():
        run, inputs = make()
        assert torch.isfinite(run(place, *inputs)).all(), name
    small = cuda_cases.Sizes(width=256, vocab=300, context=32, rows=(1, 9), cache_bytes=1)
    for name, make in cuda_cases.benchmarks(place, "cpu", small).items():
        work, moved = make()
        work()
        assert all(amount > 0 for amount in moved.values()), name
    assert seen == {kernel.name for kernel in KERNELS} - {
        "rope_kv",
        "embed",
        "rank_exchange",
    }  # whose bits the kernel tests compare


def test_two_ranks(gpu_check: Any) -> None:
    """The section runs, here on the emulator, and says that there are no two GPUs."""
    assert gpu_check.ranks(100)["note"].endswith("two GPUs are left out, there is one; 3 steps from graphs")


def test_bits_are_compared(gpu_check: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ones pass, and one that differs fails the section."""
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    monkeypatch.setattr(cuda_places, "gpu", lambda: Emulator("reverse"))
    chosen = {name: case for name, case in cuda_cases.cases().items() if name in ("rms_norm", "causal_conv")}
    monkeypatch.setattr(cuda_cases, "cases", lambda: chosen)
    assert "2 kernels" in gpu_check.same_bits(100)["note"]

    class Broken(Emulator):
        def launch(self, kernel: Any, defines: Any, entry: str, grid: Any, arguments: Any) -> None:
            super().launch(kernel, defines, entry, grid, arguments)
            if entry == "rms_norm":
                arguments[2][0, 0] += 1

    monkeypatch.setattr(cuda_places, "gpu", Broken)
    with pytest.raises(RuntimeError, match=r"rms_norm \(0.03% of 3500\)"):
        gpu_check.same_bits(100)


def test_the_report(gpu_check: Any, tmp_path: Path) -> None:
    """A section that fails, one that is left out, and one for which there is no time do not stop the others."""
    report = gpu_check.Report(tmp_path)

    def fails(left: float) -> dict[str, Any]:
        raise ValueError("broken\nand more")

    def missing(left: float) -> dict[str, Any]:
        gpu_check.needs("no_such_package")
        return {}

    for name, section, left in (("a", fails, 99), ("b", missing, 99), ("c", lambda left: {"note": "fine"}, 99), ("d", fails, 1)):
        report.run(name, section, left)
    assert [result["status"] for result in report.sections.values()] == ["failed", "left out", "ok", "left out"]
    assert report.sections["b"]["why"] == "no_such_package not installed" and "no time left" in report.sections["d"]["why"]
    written = json.loads((tmp_path / "gpu_check.json").read_text())
    assert written == report.sections and written["a"]["trace"].startswith("Traceback") and report.failed()
    assert (tmp_path / "gpu_check.txt").read_text().count("\n") == 4
    assert "broken" in gpu_check.line_of("a", report.sections["a"]) and "more" not in gpu_check.line_of("a", report.sections["a"])


def test_pytest_is_counted(gpu_check: Any) -> None:
    """A run that passes gives its closing line; a choice that finds no test is a failure, as nothing was shown."""
    assert (
        "3 passed" in gpu_check.tests(["tests/kernels/cuda/test_cuda_compile.py"], "registered or notices or named", 200)["note"]
    )
    with pytest.raises(RuntimeError):
        gpu_check.tests(["tests/kernels/cuda/test_cuda_compile.py"], "nothing_is_named_so", 200)


def test_a_check_without_a_gpu_reports_too(gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is in the report, in one line, and the exit code is of its own."""
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "new")])
    assert gpu_check.main() == 2
    (section,) = json.loads((tmp_path / "new" / "gpu_check.json").read_text()).values()
    assert section["status"] == "left out" and section["why"] in (
        "cupy not installed; this check needs PyTorch, CuPy and NumPy",
        GPU,
    )
    monkeypatch.setattr(gpu_check, "absent", lambda *names: [name for name in names if name == "torch"])
    assert gpu_check.nothing_to_check_on() == "torch not installed; this check needs PyTorch, CuPy and NumPy"


GPU = "PyTorch finds no GPU"


def test_a_large_model_in_small(tmp_path: Path) -> None:
    """The section that runs a billion weights, on the emulator with few: company, graphs, draws; and it notices other bits."""
    from workers.ops.cuda.ops import CudaOps

    shape, plan = Shape(2, 4, 2, 16, 96, 64, 128), cuda_model.Plan(20, 4, (1, 3))
    result = cuda_model.check(EmulatedPlace(), tmp_path, shape, plan, lambda: 100.0)
    assert set(result["speeds"]["x3"]) == {"prompt_ms", "decode_ms", "tokens_per_s"} and "bits as alone" in result["note"]
    assert result["graphs"] == {"captures": 2, "replays": 6, "fallbacks": 5, "invalidations": 0}
    assert cuda_model.check(EmulatedPlace(), tmp_path, shape, plan, lambda: 1.0)["speeds"] == {
        "x1": {"left out": "no time"},
        "x3": {"left out": "no time"},
    }

    class Neighbourly(EmulatedPlace):
        def launch(self, kernel: Any, defines: Any, entry: str, grid: Any, arguments: Any) -> None:
            super().launch(kernel, defines, entry, grid, arguments)
            if entry.startswith("linear_rows4"):
                arguments[3][0, 0] += 1e-3

    with pytest.raises(RuntimeError, match="among 3 sequences one has other bits than alone"):
        cuda_model.check(Neighbourly(), tmp_path, shape, plan, lambda: 100.0)
    assert CudaOps.kind == "cuda"


def test_what_verify_says(gpu_check: Any, tmp_path: Path) -> None:
    """A real `helexa verify` of a tiny model, on the CPU's ops; one that cannot start fails with its own words."""
    model = write_tiny_model(tmp_path / "tiny.gguf", layers=1)
    config = tmp_path / "helexa.toml"
    config.write_text('[devices]\nuse = "cpu"\n')
    result = gpu_check.verified(model, config, 200)
    assert "replies and logits are the same; " in result["note"] and result["verify"]["comparisons"] > 0
    config.write_text('[devices]\nuse = "cuda:7"\n')
    with pytest.raises(RuntimeError, match="helexa verify ended with"):
        gpu_check.verified(model, config, 60)


def test_sections_that_run_models(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They make their models in folders of their own, on the one GPU, within the time that is left; too little is said."""
    sys.path.append(str(ROOT / "tools"))
    import streaming_sweep

    place = EmulatedPlace()
    monkeypatch.setattr(cuda_places, "gpu", lambda: place)
    seen: list[Any] = []

    def check(place: Any, folder: Path, shape: Shape, plan: Any, seconds: Any) -> dict[str, Any]:
        seen.append((place, folder.is_dir(), shape.layers, plan.sequences, seconds() > 30))
        return {"note": "fine"}

    def sweep(place: Any, folder: Path, shape: Shape, plan: Any, share: float) -> list[dict[str, Any]]:
        seen.append((place, folder.is_dir(), shape.layers, plan.sequences, share))
        return [{"streams": 1, "tokens_per_s": 9.5}]

    monkeypatch.setattr(cuda_model, "check", check)
    monkeypatch.setattr(streaming_sweep, "sweep", sweep)
    assert gpu_check.model(60) == {"note": "fine"} and gpu_check.streaming(60)["note"] == "x1 9.5 tok/s"
    assert seen == [(place, True, 16, (1, 8, 32), True), (place, True, 6, (1, 2, 4, 8), 0.5)]
    for section in (gpu_check.streaming, gpu_check.verify):
        with pytest.raises(gpu_check.LeftOutError, match="raise --budget-s"):
            section(20)
