"""Which GPUs the machine has, and which devices a configuration means. NVIDIA's management library is asked, so no process gets a device
context here; the device workers alone touch devices."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from helexa.errors import ConfigError

LEAST_CAPABILITY = (8, 0)
PACKAGES = ("torch", "cupy")
INSTALL = "install them with helexa's extra: pip install 'helexa[cuda13]' (or [cuda12])"
_NVLINK, _READ = 2, 0  # of nvmlDeviceGetP2PStatus


@dataclass(frozen=True)
class Gpu:
    """`index` is in PCI bus order, as in nvidia-smi. `links`: how each other GPU is reached, by its index: `nvlink`, `pcie` (directly)
    or `host` (only through host memory)."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    links: dict[int, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.capability >= LEAST_CAPABILITY


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def load_management_library() -> Any:
    """NVIDIA's management library, or None where there is no driver."""
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def find_gpus(library: Any = None) -> list[Gpu]:
    """The machine's GPUs; none where there is no driver, or it does not answer."""
    library = library or load_management_library()
    count = ctypes.c_uint()
    if library is None or library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    try:
        handles = [_handle(library, index) for index in range(count.value)]
        known = [(index, handle) for index, handle in enumerate(handles) if handle is not None]
        return [_describe(library, index, handle, known) for index, handle in known]
    finally:
        library.nvmlShutdown()


def _handle(library: Any, index: int) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    return None if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) else handle


def _describe(library: Any, index: int, handle: ctypes.c_void_p, known: list[tuple[int, ctypes.c_void_p]]) -> Gpu:
    name, memory, major, minor = ctypes.create_string_buffer(96), _Memory(), ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name)))
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    links = {other: _link(library, handle, peer) for other, peer in known if other != index}
    return Gpu(index, name.value.decode(errors="replace"), memory.total, memory.free, (major.value, minor.value), links)


def _link(library: Any, one: ctypes.c_void_p, other: ctypes.c_void_p) -> str:
    status = ctypes.c_int(-1)
    for kind, name in ((_NVLINK, "nvlink"), (_READ, "pcie")):
        if library.nvmlDeviceGetP2PStatus(one, other, ctypes.c_int(kind), ctypes.byref(status)) == 0 and status.value == 0:
            return name
    return "host"


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def choose(
    wanted: str,
    cpu_ops: str = "auto",
    find: Callable[[], list[Gpu]] = find_gpus,
    missing: Callable[[], list[str]] = missing_packages,
) -> list[int]:
    """The GPUs that device workers run on, by index, in turn; empty: the CPU.

    `auto` is every usable GPU where PyTorch and CuPy are installed and no CPU ops are asked for, else the CPU; `cpu`; `cuda`, every
    usable GPU; `cuda:0,2`, these. Raises ConfigError for another word, and for GPUs that are not there or cannot be used.
    """
    if wanted == "cpu" or (wanted == "auto" and (cpu_ops != "auto" or missing())):
        return []
    indices = _indices(wanted)
    found = {gpu.index: gpu for gpu in find()}
    usable = [index for index, gpu in found.items() if gpu.usable]
    if wanted == "auto":
        return usable
    if not found:
        raise ConfigError(f"--device {wanted}: no NVIDIA GPU was found on this machine; leave the flag out to run on the CPU")
    if cpu_ops != "auto":
        raise ConfigError(f"--device {wanted}: cpu.ops = {cpu_ops} runs on the CPU; give one of the two")
    for index in indices or ([] if usable else sorted(found)):
        if index not in found:
            raise ConfigError(f"--device {wanted}: there is no GPU {index}; `helexa devices` lists those there are")
        if not found[index].usable:
            major, minor = found[index].capability
            raise ConfigError(
                f"--device {wanted}: GPU {index} has compute capability {major}.{minor}; the kernels need 8.0 or later"
            )
    if absent := missing():
        raise ConfigError(f"--device {wanted}: {' and '.join(absent)} not installed; {INSTALL}")
    return indices or usable


def place(chosen: Sequence[int], ranks: int, turn: int) -> list[int | None]:
    """The GPU of each rank of a model's worker, of those that `choose` names: workers take turns, this is number `turn`, from 0.
    None: the CPU. Raises ConfigError where there are fewer GPUs than ranks."""
    if not chosen:
        return [None] * ranks
    if ranks > len(chosen):
        raise ConfigError(
            f"devices.tensor_parallel (--tensor-parallel) = {ranks}: each rank takes a GPU of its own, and there "
            f"{'is' if len(chosen) == 1 else 'are'} {len(chosen)} to use (devices.use); set it to at most {len(chosen)}"
        )
    return [chosen[(turn * ranks + rank) % len(chosen)] for rank in range(ranks)]


def _indices(wanted: str) -> list[int]:
    """Those named in `cuda:0,2`; none in `cuda` and `auto`."""
    kind, colon, listed = wanted.partition(":")
    if wanted == "auto" or (kind == "cuda" and not colon):
        return []
    numbers = listed.split(",")
    if kind != "cuda" or not all(number.isascii() and number.isdigit() and len(number) < 4 for number in numbers):
        raise ConfigError(f"devices.use (--device) is `{wanted}`; it is auto, cpu, cuda, or cuda with numbers: cuda:0,1")
    return list(dict.fromkeys(int(number) for number in numbers))
