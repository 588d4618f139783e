"""Which GPUs there are, from a stand-in for NVIDIA's library, and what a configuration makes of them."""

from __future__ import annotations

import ctypes
import io
import json
import subprocess
import sys
from typing import Any

import pytest

from helexa import cli, devices
from helexa.commands import devices as command
from helexa.config_tables import Config, Devices
from helexa.devices import Gpu
from helexa.errors import ConfigError
from helexa.served_models import environment_of


class FakeLibrary:
    """NVML of GPUs given as (name, bytes, capability); 0 and 1 are joined by NVLink, 1 and 2 by PCIe, others not."""

    def __init__(self, gpus: list[tuple[str, int, tuple[int, int]]], broken: int = -1, driver: bool = True) -> None:
        self.gpus, self.broken, self.driver, self.open = gpus, broken, driver, 0

    def nvmlInit_v2(self) -> int:
        self.open += self.driver
        return 0 if self.driver else 9

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 15 if index.value == self.broken else 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: Any) -> int:
        name.value = self.gpus[handle.value - 1][0].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.free = self.gpus[handle.value - 1][1], self.gpus[handle.value - 1][1] // 2
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self.gpus[handle.value - 1][2]
        return 0

    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, kind: Any, status: Any) -> int:
        joined = {(1, 2): (0, 2), (2, 3): (0,)}.get(tuple(sorted((one.value, other.value))), ())
        status._obj.value = 0 if kind.value in joined else 1
        return 0


BIG, OLD = ("Big", 80 << 30, (9, 0)), ("Old", 8 << 30, (7, 5))


def none_missing() -> list[str]:
    return []


def test_gpus_as_the_library_describes_them():
    """Names, memory, capability and links; one that has fallen off the bus is left out, and the library is closed again."""
    library = FakeLibrary([BIG, BIG, OLD], broken=-1)
    found = devices.find_gpus(library)
    assert [gpu.name for gpu in found] == ["Big", "Big", "Old"] and found[0].memory_bytes == 80 << 30 == 2 * found[0].free_bytes
    assert [gpu.links for gpu in found] == [{1: "nvlink", 2: "host"}, {0: "nvlink", 2: "pcie"}, {0: "host", 1: "pcie"}]
    assert [gpu.usable for gpu in found] == [True, True, False] and library.open == 0
    assert [gpu.index for gpu in devices.find_gpus(FakeLibrary([BIG, BIG], broken=0))] == [1]
    assert devices.find_gpus(FakeLibrary([], driver=False)) == []


@pytest.mark.parametrize(
    ("wanted", "cpu_ops", "expected"),
    [
        ("auto", "auto", [0, 1]),
        ("auto", "reference", []),
        ("cpu", "auto", []),
        ("cuda", "auto", [0, 1]),
        ("cuda:1", "auto", [1]),
        ("cuda:1,0,1", "auto", [1, 0]),
    ],
)
def test_what_a_configuration_means(wanted, cpu_ops, expected):
    """Usable GPUs, in the order they are named; CPU ops mean the CPU."""
    found = devices.find_gpus(FakeLibrary([BIG, BIG, OLD]))
    assert devices.choose(wanted, cpu_ops, lambda: found, none_missing) == expected


@pytest.mark.parametrize(
    ("wanted", "cpu_ops", "gpus", "words"),
    [
        ("cuda", "auto", [], "no NVIDIA GPU was found"),
        ("cuda:0", "auto", [], "no NVIDIA GPU was found"),
        ("cuda:3", "auto", [BIG], "there is no GPU 3"),
        ("cuda:0", "auto", [OLD], "compute capability 7.5"),
        ("cuda", "auto", [OLD], "compute capability 7.5"),
        ("cuda", "native", [BIG], "give one of the two"),
        ("gpu", "auto", [BIG], "auto, cpu, cuda, or cuda with numbers"),
        ("cuda:", "auto", [BIG], "auto, cpu, cuda, or cuda with numbers"),
        ("cuda:-1", "auto", [BIG], "auto, cpu, cuda, or cuda with numbers"),
    ],
)
def test_what_cannot_be_is_refused(wanted, cpu_ops, gpus, words):
    """One line that says what is wrong and what to do."""
    found = devices.find_gpus(FakeLibrary(gpus))
    with pytest.raises(ConfigError, match=words) as error:
        devices.choose(wanted, cpu_ops, lambda: found, none_missing)
    assert "\n" not in error.value.message


def test_packages_that_are_not_installed():
    """Named where a GPU is asked for; `auto` runs on the CPU without them."""
    found = devices.find_gpus(FakeLibrary([BIG]))
    assert devices.choose("auto", "auto", lambda: found, lambda: ["cupy"]) == []
    with pytest.raises(ConfigError, match=r"cupy not installed; .*cuda13"):
        devices.choose("cuda", "auto", lambda: found, lambda: ["cupy"])


@pytest.mark.skipif(devices.load_management_library() is not None, reason="there is an NVIDIA driver")
def test_serving_on_a_gpu_that_is_not_there(capsys):
    """One clear line, exit code 2."""
    assert cli.main(["serve", "nothing.gguf", "--device", "cuda"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--device cuda: no NVIDIA GPU was found on this machine" in error


def test_the_devices_command():
    """For people and as JSON; what is wrong with the configuration is said, not raised."""
    gpus = devices.find_gpus(FakeLibrary([BIG, OLD]))
    out = io.StringIO()
    assert command.show(Config(devices=Devices("cpu")), out, gpus=gpus) == 0
    assert out.getvalue().splitlines() == [
        "cuda:0  Big  80.0 GiB, 40.0 free  compute capability 9.0  to 1 by nvlink",
        "cuda:1  Old  8.0 GiB, 4.0 free  compute capability 7.5 (8.0 is needed)  to 0 by nvlink",
        "devices.use = cpu: models run on cpu",
    ]
    out = io.StringIO()
    assert command.show(Config(devices=Devices("cuda:7")), out, as_json=True, gpus=gpus) == 0
    shown = json.loads(out.getvalue())
    assert shown["gpus"][0]["capability"] == [9, 0] and shown["use"] == "" and "no GPU 7" in shown["error"]
    out = io.StringIO()
    assert command.show(Config(), out, gpus=[]) == 0 and out.getvalue().startswith("no NVIDIA GPU was found\n")


def test_a_worker_is_shown_its_gpu_alone():
    """By the number that `helexa devices` gives it; a CPU worker sees none. A rank's own comes first, then those of the others, whose
    arrays it opens."""
    assert environment_of([2], 0) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2"}
    assert environment_of([None, None], 1)["CUDA_VISIBLE_DEVICES"] == ""
    assert [environment_of([4, 5, 6], rank)["CUDA_VISIBLE_DEVICES"] for rank in range(3)] == ["4,5,6", "5,4,6", "6,4,5"]


def test_each_rank_has_a_gpu_of_its_own():
    """Workers take turns; too few GPUs are an error that says how many there are. The CPU has room for all ranks."""
    assert devices.place([], 3, 0) == [None, None, None]
    assert [devices.place([0, 1, 2, 3], 2, turn) for turn in range(3)] == [[0, 1], [2, 3], [0, 1]]
    assert devices.place([7], 1, 5) == [7]
    assert devices.place([0, 1, 2], 2, 1) == [2, 0]
    with pytest.raises(ConfigError, match=r"tensor_parallel.* = 2.*there is 1 to use.*at most 1"):
        devices.place([3], 2, 0)


def test_nothing_but_a_gpus_worker_imports_device_libraries():
    """The worker, its CPU ops, the scheduler, the supervisor, the web tier and the command line have neither torch nor CuPy."""
    modules = (
        "workers.process workers.ops.choice workers.ops.native.ops helexa.scheduler.process helexa.supervisor helexa.web.app"
    )
    names = [
        *modules.split(),
        "helexa.cli",
        "helexa.commands.devices",
        "ipc.cuda_array",
        "kernels_cupy.registry",
        "kernels_cupy.compiler",
    ]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {names}]; print(sorted({{'torch', 'cupy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_memory_fields_are_as_the_library_has_them():
    """Three counts of 8 bytes: total, free, used."""
    assert ctypes.sizeof(devices._Memory) == 24


def test_a_gpu_knows_whether_it_is_usable():
    """From compute capability 8.0 on."""
    assert Gpu(0, "a", 1, 1, (8, 0)).usable and not Gpu(0, "a", 1, 1, (7, 9)).usable
