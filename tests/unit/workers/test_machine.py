"""Threads and memory from fake /proc, /sys and cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers import machine


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def siblings(pairs: list[str]) -> dict[str, str]:
    """thread_siblings_list files for groups such as `0,4`."""
    files = {}
    for group in pairs:
        for cpu in group.split(","):
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = group
    return files


FOUR_CORES = siblings(["0,4", "1,5", "2,6", "3,7"])
V2 = {"proc/self/cgroup": "0::/user/app\n"}


@pytest.mark.parametrize(
    ("files", "affinity", "wanted", "count", "note"),
    [
        (FOUR_CORES, range(8), 0, 4, "no hyperthreads"),
        (FOUR_CORES, range(8), 3, 3, "cpu.threads"),
        (FOUR_CORES, [0, 4], 0, 1, "no hyperthreads"),
        (FOUR_CORES, [0, 1, 2], 0, 3, "3 of 3"),
        ({}, range(2), 0, 2, "2 of 2"),
        (FOUR_CORES | {"sys/devices/cpu_core/cpus": "0-1,4-5"}, range(8), 0, 2, "performance cores"),
        (
            FOUR_CORES | {"sys/devices/system/node/node0/cpulist": "0,4,1,5,2,6", "sys/devices/system/node/node1/cpulist": "3,7"},
            range(8),
            0,
            3,
            "one of 2 NUMA nodes",
        ),
        (FOUR_CORES | V2 | {"sys/fs/cgroup/user/app/cpu.max": "150000 100000"}, range(8), 0, 1, "quota of 1.5"),
        (
            FOUR_CORES | V2 | {"sys/fs/cgroup/user/cpu.max": "200000 100000", "sys/fs/cgroup/user/app/cpu.max": "max 100000"},
            range(8),
            0,
            2,
            "quota of 2",
        ),
        (FOUR_CORES | V2 | {"sys/fs/cgroup/user/app/cpu.max": "50000 100000"}, range(8), 0, 1, "quota of 0.5"),
        (
            FOUR_CORES
            | {
                "proc/self/cgroup": "3:cpu,cpuacct:/app\n",
                "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000",
            },
            range(8),
            0,
            3,
            "quota of 3",
        ),
    ],
)
def test_threads(tmp_path, files, affinity, wanted, count, note):
    """Physical cores, performance cores first, one NUMA node, within affinity and quota; the reason is said."""
    found = machine.threads(tree(tmp_path, files), set(affinity), wanted)
    assert found.count == count and note in found.note


@pytest.mark.parametrize(
    ("ranks", "wanted", "count", "note"),
    [
        (2, 0, 2, "2 for each of 2 ranks, of 4 of 8 CPUs"),
        (3, 0, 1, "1 for each of 3"),
        (9, 0, 1, "9 ranks"),
        (2, 3, 3, "cpu.threads"),
    ],
)
def test_ranks_share_the_cores(tmp_path: Path, ranks: int, wanted: int, count: int, note: str) -> None:
    """Evenly, at least one each, and the reason says so; a number that is configured is each rank's."""
    found = machine.threads(tree(tmp_path, FOUR_CORES), set(range(8)), wanted, ranks)
    assert found.count == count and note in found.note


GIB = 2**30
MEMINFO = {"proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 20971520 kB\n"}  # 20 GiB


@pytest.mark.parametrize(
    ("files", "own", "wanted", "expected", "note"),
    [
        (MEMINFO, 0, 0, 14 * GIB, "free memory"),
        (MEMINFO, 10 * GIB, 0, 21 * GIB, "free memory"),
        (MEMINFO, 0, 3 * GIB, 3 * GIB, "memory.limit_mib"),
        (MEMINFO | V2 | {"sys/fs/cgroup/user/app/memory.max": str(10 * GIB)}, 0, 0, 7 * GIB, "cgroup"),
        (
            MEMINFO | V2 | {"sys/fs/cgroup/user/memory.max": str(5 * GIB), "sys/fs/cgroup/user/app/memory.max": "max"},
            0,
            0,
            3.5 * GIB,
            "cgroup",
        ),
        (MEMINFO | V2 | {"sys/fs/cgroup/user/app/memory.max": str(100 * GIB)}, 0, 0, 14 * GIB, "free memory"),
        (
            MEMINFO | {"proc/self/cgroup": "9:memory:/app\n", "sys/fs/cgroup/memory/app/memory.limit_in_bytes": str(2 * GIB)},
            0,
            0,
            1.4 * GIB,
            "cgroup",
        ),
        (
            MEMINFO
            | {"proc/self/cgroup": "9:memory:/app\n", "sys/fs/cgroup/memory/app/memory.limit_in_bytes": "9223372036854771712"},
            0,
            0,
            14 * GIB,
            "free memory",
        ),
    ],
)
def test_memory_limit(tmp_path, files, own, wanted, expected, note):
    """70 % of the least of free memory (and our own) and every enclosing cgroup's limit, or what is configured."""
    found = machine.memory_limit(tree(tmp_path, files), own, wanted)
    assert abs(found.bytes - expected) < 2 and note in found.note
