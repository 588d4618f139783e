"""Building, finding and feeding the native library."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helexa.errors import ModelFileError, StartError
from workers.ops.native import build, library
from workers.ops.native.memory import Arena, address_of, drop_mapped_pages
from workers.ops.native.ops import NativeOps, available


def test_the_built_library_is_current() -> None:
    """Its hash is that of the sources beside it."""
    assert available() is None
    assert library.native_library().helexa_source_hash().decode() == build.source_hash()


def test_a_missing_library_names_the_remedy(tmp_path: Path) -> None:
    """Both as a reason and as the error of using it."""
    reason = library.why_missing(tmp_path / "none.so")
    assert reason is not None and "C++ compiler" in reason and library.BUILD_COMMAND in reason
    with pytest.raises(StartError, match="not built"):
        library.load_library(tmp_path / "none.so")


def test_a_stale_library_is_an_error(tmp_path: Path) -> None:
    """A library of other sources names the command that rebuilds it; so does one that lacks a function, or is no library."""
    source = tmp_path / "stale.c"
    functions = "".join(f"void {name}(void) {{}}\n" for name in library._SIGNATURES if name != "helexa_source_hash")
    source.write_text(f'const char* helexa_source_hash(void) {{ return "0123456789abcdef"; }}\n{functions}')
    compiler = build.find_compiler()
    stale = tmp_path / "stale.so"
    build._run([*compiler, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(stale)])
    with pytest.raises(StartError, match=r"0123456789ab.*python -m workers\.ops\.native\.build"):
        library.load_library(stale)
    source.write_text('const char* helexa_source_hash(void) { return "0"; }\n')
    old = tmp_path / "old.so"
    build._run([*compiler, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(old)])
    with pytest.raises(StartError, match="older than their sources"):
        library.load_library(old)
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(StartError, match="cannot be loaded"):
        library.load_library(tmp_path / "text.so")


def test_the_hash_sees_every_source(tmp_path: Path) -> None:
    """A change to any C++ file, its name or the build's flags changes it."""
    for path in [*build.SOURCE_DIR.glob("*.cpp"), *build.SOURCE_DIR.glob("*.h"), build.SOURCE_DIR / "build.py"]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first = build.source_hash(tmp_path)
    assert first == build.source_hash()
    for path in sorted(tmp_path.iterdir()):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert build.source_hash(tmp_path) != first
        path.write_bytes(before)


def test_a_failed_build_says_what_failed(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    with pytest.raises(build.BuildError, match="the compiler failed"):
        build.build(tmp_path / "x.so", ["false"])
    assert list(tmp_path.iterdir()) == []


def test_unknown_instruction_set() -> None:
    """Names those there are."""
    with pytest.raises(StartError, match="portable"):
        NativeOps(1, 8, isa="avx1024")


def test_tensors_that_cannot_be_packed(bench: Any) -> None:
    """Each names the tensor and what is wrong."""
    ops = NativeOps(1, 8)
    data = np.zeros(20 * 16, np.uint8)
    for raw, message in [
        (bench.raw("w", "Q2_K", (16, 32), data), "Q2_K"),
        (bench.raw("w", "Q4_1", (15, 32), data), "do not fit"),
        (bench.raw("w", "Q4_1", (16, 20), data), "do not fit"),
    ]:
        with pytest.raises(ModelFileError, match=message):
            ops.matrix([raw])
    good, _ = bench.random_weights("Q8_0", 16, 64)
    with pytest.raises(ModelFileError, match="takes 64 columns"):
        ops.matrix([good, bench.random_weights("Q8_0", 16, 32)[0]])
    with pytest.raises(ModelFileError, match="vector must be"):
        ops.vector(good)
    with pytest.raises(ModelFileError, match="wider"):
        ops.allocate_kv(1, 1, 1, 512)


def test_packed_weights_take_the_files_bytes(bench: Any) -> None:
    """Repacking adds no bytes where outputs are a multiple of 16."""
    ops = NativeOps(1, 8)
    raw, _ = bench.random_weights("Q4_1", 64, 96)
    ops.matrix([raw])
    assert ops.weight_bytes == raw.data.nbytes


def test_arena_memory_is_aligned_and_apart() -> None:
    """Pieces start on a cache line, do not overlap, and one larger than a chunk is fine."""
    arena = Arena()
    pieces = [arena.take(size) for size in (1, 64, 1000, 70 << 20, 5)]
    spans = sorted((address_of(piece), address_of(piece) + piece.nbytes) for piece in pieces)
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_only_a_mapped_files_pages_are_dropped(tmp_path: Path) -> None:
    """Data in plain memory keeps its bytes; a mapped file's can be read again."""
    plain = np.arange(3 * mmap.PAGESIZE, dtype=np.uint8)
    plain.flags.writeable = False
    drop_mapped_pages(plain)
    assert plain[5000] == 5000 % 256
    path = tmp_path / "weights"
    path.write_bytes(plain.tobytes())
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    drop_mapped_pages(mapped[100:])
    assert np.array_equal(mapped, plain)
