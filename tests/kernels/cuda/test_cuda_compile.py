"""The compile gate: every kernel and variant, for every architecture, with no GPU; and what it may take of one."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels_cupy import compiler
from kernels_cupy.compiler import ARCHITECTURES, CompileError, Usage, compile_kernel
from kernels_cupy.registry import ATTENTION, FOLDER, KERNELS, Kernel, Limits

CACHE = Path(tempfile.gettempdir()) / f"helexa-cubins-{os.getuid()}"  # cuda_places.CUBINS, which needs torch


@pytest.fixture(scope="module", autouse=True)
def _needs_nvrtc() -> None:
    try:
        compiler.version()
    except CompileError as error:
        pytest.skip(str(error))
    CACHE.mkdir(mode=0o700, exist_ok=True)


def excess(usage: Usage, limits: Limits) -> list[str]:
    """What an entry takes above its limits."""
    pairs = [
        ("registers", usage.registers, limits.registers),
        ("spilled bytes", usage.spilled, limits.spilled),
        ("shared bytes", usage.shared, limits.shared),
    ]
    return [f"{usage.entry}: {taken} {what}, at most {most}" for what, taken, most in pairs if taken > most]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_variant_compiles_within_its_limits(kernel: Kernel, architecture: int) -> None:
    """Each is a cubin with the entries of the registry, for compute capabilities 8.0 .. 12.0."""

    def check(defines: tuple[str, ...]) -> list[str]:
        compiled = compile_kernel(kernel, defines, architecture, CACHE)
        usages = compiled.usage()
        assert compiled.cubin[:4] == b"\x7fELF"
        assert sorted(usage.entry for usage in usages) == sorted(kernel.entries)
        return [f"{defines} sm_{architecture}: {words}" for usage in usages for words in excess(usage, kernel.limits)]

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        wrong = [words for found in threads.map(check, kernel.variants) for words in found]
    assert not wrong, "\n".join(wrong)


def test_every_source_is_registered() -> None:
    """A .cu that the registry does not name would never be compiled nor tested (an entry it does not name fails above)."""
    assert sorted(FOLDER.rglob("*.cu")) == sorted(kernel.source for kernel in KERNELS)


def test_the_gate_notices() -> None:
    """A kernel that spills, or takes more than its limits, fails; one that does not compile says why."""
    usages = compile_kernel(ATTENTION, ATTENTION.variants[0], 90, CACHE).usage()
    assert excess(usages[0], Limits(registers=16, shared=0)) != []
    assert excess(Usage("x", 10, 8, 0), Limits(64)) == ["x: 8 spilled bytes, at most 0"]
    with pytest.raises(CompileError, match="HEAD_DIM"):
        compile_kernel(ATTENTION, ("ACT=f32", "KV=f16"), 90)


def test_a_cubin_is_named_by_what_it_is_made_of(tmp_path: Path) -> None:
    """Another variant or architecture has another name; a second compilation is read from the folder."""
    first, second = ATTENTION.variants[:2]
    names = {compiler.source_key(ATTENTION, defines, arch) for defines in (first, second) for arch in (80, 90)}
    assert len(names) == 4
    cold = compile_kernel(KERNELS[0], (), 80, tmp_path)
    for path in tmp_path.glob("*.cubin"):
        path.write_bytes(cold.cubin + b"kept")
    assert compile_kernel(KERNELS[0], (), 80, tmp_path).cubin == cold.cubin + b"kept"
