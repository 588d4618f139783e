"""Runs the CUDA kernels on the CPU: compiles a .cu with g++ behind language.h, and launches it on torch's CPU tensors.

Block, barrier and warp semantics are real (see runtime.cpp). Arguments are checked against the kernel's parameters as a GPU cannot: an
int64 passed for an int32, or a tensor of another width, is refused. What it does not show: races between blocks, and speed.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels_cupy.registry import FOLDER, Defines, Kernel

HERE = Path(__file__).resolve().parent
SCHEDULES = ("forward", "reverse", "random")
FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-unused-function",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)
TSAN_FLAGS = ("-fsanitize=thread", "-g")
CACHE = Path(tempfile.gettempdir()) / f"helexa-cuda-on-cpu-{os.getuid()}"


class EmulatorError(Exception):
    """A kernel that broke a rule of CUDA, or arguments that are not its parameters'."""


class _Index(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class _Launch(ctypes.Structure):
    _fields_ = [("grid", _Index), ("block", _Index), ("seed", ctypes.c_uint64), ("schedule", ctypes.c_int)]


class Emulator:
    """A `Device` of kernels_cupy/device.py. `folder` holds the kernels (a changed copy, for mutation tests); `watched` compiles for
    ThreadSanitizer, which then must be loaded first in the process."""

    def __init__(self, schedule: str = "forward", seed: int = 0, folder: Path = FOLDER, watched: bool = False) -> None:
        self.schedule, self.seed, self.folder, self.watched = schedule, seed, folder, watched
        self.launches = 0
        self._libraries: dict[tuple[str, Defines], ctypes.CDLL] = {}

    def launch(self, kernel: Kernel, defines: Defines, entry: str, grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
        if defines not in kernel.variants:
            raise EmulatorError(f"{kernel.name}: {defines} is not a registered variant")
        key = (kernel.name, defines)
        if key not in self._libraries:
            self._libraries[key] = _library(self.folder / kernel.name / f"{kernel.name}.cu", kernel, defines, self.watched)
        library = self._libraries[key]
        held = _checked(entry, _parameters(library, entry), arguments)
        pointers = (ctypes.c_void_p * len(held))(*(value.ctypes.data for value in held))
        sizes = (*grid, 1, 1)[:3]
        launch = _Launch(_Index(*sizes), _Index(kernel.threads, 1, 1), self.seed, SCHEDULES.index(self.schedule))
        self.launches += 1
        if getattr(library, f"launch_{entry}")(ctypes.byref(launch), pointers):
            raise EmulatorError(f"{entry}: {library.cuda_on_cpu_error().decode()}")


def _parameters(library: ctypes.CDLL, entry: str) -> str:
    text = ctypes.create_string_buffer(128)
    getattr(library, f"describe_{entry}")(text)
    return text.value.decode()


def _checked(entry: str, parameters: str, arguments: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    if len(parameters) != 2 * len(arguments):
        raise EmulatorError(f"{entry}: {len(arguments)} arguments for {len(parameters) // 2} parameters")
    held = []
    for place, argument in enumerate(arguments):
        wanted = parameters[2 * place : 2 * place + 2]
        if isinstance(argument, torch.Tensor):
            given, value = f"p{argument.element_size()}", np.array(argument.data_ptr(), np.uint64)
        elif isinstance(argument, np.generic):
            given, value = f"{argument.dtype.kind}{argument.dtype.itemsize}", np.array(argument)
        else:
            raise EmulatorError(f"{entry}: argument {place} is a {type(argument).__name__}: a launcher converts to NumPy scalars")
        if given != wanted:
            raise EmulatorError(f"{entry}: argument {place} is {given}, the parameter is {wanted}")
        held.append(value)
    return held


def _library(source: Path, kernel: Kernel, defines: Defines, watched: bool) -> ctypes.CDLL:
    text = source.read_text()
    exports = "\n".join(f"EXPORT_KERNEL({entry})" for entry in kernel.entries)
    # an unnamed namespace gives shared arrays of inline functions internal linkage
    wrapped = f'#include "language.h"\nnamespace {{\n#line 1 "{source.name}"\n{text}\n}}\n{exports}\n'
    sanitiser = TSAN_FLAGS if watched else ()
    constants = [f"-D{constant}" for constant in (f"THREADS={kernel.threads}", *defines)]
    headers = [*sorted(source.parents[1].glob("*.cuh")), *sorted(HERE.glob("*.h")), HERE / "runtime.cpp"]
    known = "".join(path.read_text() for path in headers) + wrapped + repr((FLAGS, sanitiser, constants))
    built = CACHE / f"{kernel.name}-{hashlib.sha256(known.encode()).hexdigest()[:24]}.so"
    if not built.exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            wrapper, kernel_object, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.o"), Path(folder, "library.so")
            wrapper.write_text(wrapped)
            include = ["-I", str(HERE), "-I", str(source.parents[1])]
            _run(["g++", *FLAGS, *sanitiser, *constants, *include, "-c", str(wrapper), "-o", str(kernel_object)])
            runtime = _runtime_object(watched)
            _run(["g++", "-shared", *sanitiser, str(kernel_object), str(runtime), "-o", str(library)])
            library.replace(built)
    loaded = ctypes.CDLL(str(built))
    loaded.cuda_on_cpu_error.restype = ctypes.c_char_p
    return loaded


def _runtime_object(watched: bool) -> Path:
    """The runtime, compiled once; it is not instrumented, but tells ThreadSanitizer of its fibers."""
    flags = [*FLAGS, *(("-DWATCHED_BY_TSAN",) if watched else ())]
    known = "".join(path.read_text() for path in [*sorted(HERE.glob("*.h")), HERE / "runtime.cpp"]) + repr(flags)
    built = CACHE / f"runtime-{hashlib.sha256(known.encode()).hexdigest()[:24]}.o"
    if not built.exists():
        own = built.with_suffix(f".{os.getpid()}.o")
        _run(["g++", *flags, "-I", str(HERE), "-c", str(HERE / "runtime.cpp"), "-o", str(own)])
        own.replace(built)
    return built


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EmulatorError(f"g++ failed:\n{re.sub(r'(?m)^In file.*$', '', done.stderr)[:4000]}")


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose end is the end of readable memory: a read or write past it ends the process."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    size = tensor.numel() * tensor.element_size()
    pages = -(-max(size, 1) // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if libc.mprotect(ctypes.c_void_p(address + pages * page), page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    if size == 0:
        return tensor.clone()
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=pages * page - size).view(tensor.shape)
    copy.copy_(tensor)
    return copy
