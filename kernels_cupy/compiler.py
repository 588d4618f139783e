"""Compiles a kernel to a cubin with NVRTC, which needs neither a GPU nor a driver: one set of options for the gate and for devices.

The library is that of the nvidia-cuda-nvrtc wheels, of PyTorch's CUDA wheels, or the system's.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels_cupy.registry import FOLDER, Defines, Kernel

ARCHITECTURES = (80, 86, 89, 90, 100, 120)  # compute capabilities 8.0 .. 12.0
OPTIONS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "--ptxas-options=-v")
WHEEL_LIBRARIES = (
    "nvidia/cu13/lib/libnvrtc.so.13",
    "nvidia/cuda_nvrtc/lib/libnvrtc.so.13",
    "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
)
SYSTEM_LIBRARIES = (
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "/usr/local/cuda/lib64/libnvrtc.so",
)
REMEDY = "install it: pip install nvidia-cuda-nvrtc-cu12 (or nvidia-cuda-nvrtc for CUDA 13)"


class CompileError(Exception):
    """A kernel that does not compile, or no compiler; says what NVRTC said."""


@dataclass(frozen=True)
class Usage:
    """What one entry takes: registers a thread, bytes spilled a thread (stores and loads), bytes of static shared memory a block."""

    entry: str
    registers: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    log: str

    def usage(self) -> list[Usage]:
        return list(_usages(self.log))


def _wheel_candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for name in WHEEL_LIBRARIES:
            path = Path(folder).parent / name
            if path.exists():
                yield str(path)


@cache
def nvrtc() -> ctypes.CDLL:
    """NVRTC, the newest found. Raises CompileError where there is none."""
    for name in (*_wheel_candidates(), *SYSTEM_LIBRARIES):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompileError(f"NVRTC, the compiler of CUDA kernels, is not installed; {REMEDY}")


def version() -> tuple[int, int]:
    """NVRTC's."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def options(kernel: Kernel, defines: Defines, architecture: int) -> tuple[str, ...]:
    constants = (f"THREADS={kernel.threads}", *defines)
    return (*OPTIONS, f"-arch=sm_{architecture}", f"-I{FOLDER}", *(f"-D{constant}" for constant in constants))


def source_key(kernel: Kernel, defines: Defines, architecture: int) -> str:
    """Names a cubin: the kernel's source and the headers, the options, and the compiler."""
    digest = hashlib.sha256()
    for path in (kernel.source, *sorted(FOLDER.glob("*.cuh"))):
        digest.update(path.read_bytes() + b"\0")
    told = [option for option in options(kernel, defines, architecture) if not option.startswith("-I")]
    digest.update(repr((told, version())).encode())
    return digest.hexdigest()[:32]


def compile_kernel(kernel: Kernel, defines: Defines, architecture: int, cache_folder: Path | None = None) -> Compiled:
    """The cubin of a variant for one architecture; from `cache_folder`, and put there, if one is given. Raises CompileError."""
    if cache_folder is None:
        return _compile(kernel, defines, architecture)
    cubin = cached_cubin(kernel, defines, architecture, cache_folder)
    log = cubin.with_suffix(".log")
    if not cubin.exists() or not log.exists():
        compiled = _compile(kernel, defines, architecture)
        _write(log, compiled.log.encode())
        _write(cubin, compiled.cubin)
    return Compiled(cubin.read_bytes(), log.read_text())


def cached_cubin(kernel: Kernel, defines: Defines, architecture: int, cache_folder: Path) -> Path:
    """Where `compile_kernel` puts a cubin."""
    return cache_folder / f"{kernel.name}-{source_key(kernel, defines, architecture)}.cubin"


def _write(path: Path, data: bytes) -> None:
    """In one rename: another process may be writing the same."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_bytes(data)
    own.replace(path)


def _compile(kernel: Kernel, defines: Defines, architecture: int) -> Compiled:
    library, program = nvrtc(), ctypes.c_void_p()
    source, name = kernel.source.read_bytes(), kernel.source.name.encode()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None), "nvrtcCreateProgram")
    try:
        told = [option.encode() for option in options(kernel, defines, architecture)]
        status = library.nvrtcCompileProgram(program, len(told), (ctypes.c_char_p * len(told))(*told))
        log = _fetch(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
        if status:
            raise CompileError(f"{kernel.name} {' '.join(defines)} for sm_{architecture} does not compile: {log.strip()}")
        return Compiled(_fetch(program, "nvrtcGetCUBIN"), log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(program: ctypes.c_void_p, function: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc(), f"{function}Size")(program, ctypes.byref(size)), function)
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc(), function)(program, buffer), function)
    return buffer.raw


def _check(status: int, what: str) -> None:
    if status:
        nvrtc().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(f"{what} failed: {nvrtc().nvrtcGetErrorString(status).decode()}")


def _usages(log: str) -> Iterator[Usage]:
    for part in log.split("Compiling entry function '")[1:]:
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if not spilled or not used:
            raise CompileError(f"ptxas said something unexpected: {part.splitlines()}")
        numbers = int(used[1]), int(spilled[1]) + int(spilled[2]), int(shared[1]) if shared else 0
        yield Usage(part.split("'")[0], *numbers)
