"""Races: ThreadSanitizer finds none in the kernels, and finds one wherever a barrier is taken out of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels_cupy.registry import FOLDER

HERE = Path(__file__).resolve().parent
ROOT = FOLDER.parent
BARRIER = "__syncthreads();"
RACE = 66  # the exit code that is asked for where a race was seen
WATCHED = ("argmax", "keyed_sampling", "rms_norm", "attention", "gdn_recurrence", "moe_routing")
# a header's barriers are watched in these ops
USERS = {"common.cuh": ("rms_norm", "argmax")}


@dataclass(frozen=True)
class Removal:
    """The barrier number `number` of a file taken out, and the op that should show it."""

    file: str
    number: int
    op: str

    def __str__(self) -> str:
        return f"{self.file}-{self.number}"


def _sources() -> list[Path]:
    return [*sorted(FOLDER.glob("*.cuh")), *sorted(FOLDER.glob("*/*.cu"))]


def _removals() -> Iterator[Removal]:
    for source in _sources():
        name = str(source.relative_to(FOLDER))
        for number in range(source.read_text().count(BARRIER)):
            op = USERS[name][number] if name in USERS else source.stem
            yield Removal(name, number, op)


def watch(folder: Path, op: str) -> subprocess.CompletedProcess[str]:
    """Runs an op under ThreadSanitizer."""
    library = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("g++ has no ThreadSanitizer: install libtsan")
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "TSAN_OPTIONS": f"exitcode={RACE} report_thread_leaks=0 history_size=5",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "watched_run.py"), str(folder), op]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("op", WATCHED)
def test_no_race(op: str) -> None:
    """Every kernel with a barrier, in small."""
    done = watch(FOLDER, op)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]


def test_kernels_with_barriers_are_all_watched() -> None:
    """An op that gets its first barrier must be added to the test above."""
    with_barriers = {source.stem for source in _sources() if source.suffix == ".cu" and _has_barrier(source.read_text())}
    assert with_barriers == set(WATCHED)
    assert {name: (FOLDER / name).read_text().count(BARRIER) for name in USERS} == {name: len(ops) for name, ops in USERS.items()}


def _has_barrier(text: str) -> bool:
    return any(word in text for word in (BARRIER, "block_sum<", "block_highest<"))


@pytest.mark.parametrize("removal", list(_removals()), ids=str)
def test_a_missing_barrier_is_noticed(removal: Removal, tmp_path: Path) -> None:
    """A copy of the kernels without one barrier, on the input that is quiet with it."""
    shutil.copytree(FOLDER, tmp_path / "kernels", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    changed = tmp_path / "kernels" / removal.file
    parts = changed.read_text().split(BARRIER)
    changed.write_text(BARRIER.join(parts[: removal.number + 1]) + ";" + BARRIER.join(parts[removal.number + 1 :]))
    done = watch(tmp_path / "kernels", removal.op)
    assert done.returncode == RACE and "data race" in done.stderr, done.stdout + done.stderr[-2000:]
