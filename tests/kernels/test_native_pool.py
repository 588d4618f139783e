"""The thread pool under a thread sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workers.ops.native.build import SOURCE_DIR, find_compiler


def test_every_chunk_runs_once_and_nothing_races(tmp_path: Path) -> None:
    """Thousands of jobs on more threads than cores, with sleeps and wakes; the sanitizer finds no unordered access."""
    program = tmp_path / "stress"
    sources = [str(Path(__file__).with_name("pool_stress.cpp")), str(SOURCE_DIR / "pool.cpp")]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{SOURCE_DIR}"]
    built = subprocess.run([*find_compiler(), *flags, *sources, "-o", str(program)], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip(f"no thread sanitizer here: {built.stderr.strip().splitlines()[-1]}")
    ran = subprocess.run([str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[:2000]
