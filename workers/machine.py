"""What the machine gives a worker: threads and memory, read from /proc, /sys and the cgroup tree under `root`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY_SHARE = 0.7
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number for none


@dataclass(frozen=True)
class Threads:
    count: int
    note: str  # why


@dataclass(frozen=True)
class MemoryLimit:
    bytes: int
    note: str  # what bound it


def threads(root: Path, affinity: set[int], wanted: int, ranks: int = 1) -> Threads:
    """Physical cores (performance cores where the machine has two kinds) of one NUMA node that the affinity and the cgroup's
    quota allow, shared out evenly between `ranks`, at least one each; `wanted` > 0 overrides, for each rank."""
    if wanted > 0:
        return Threads(wanted, f"{wanted} as configured (cpu.threads)")
    allowed, notes = set(affinity), []
    fast = _cpu_list(root / "sys/devices/cpu_core/cpus") & allowed
    if fast and fast != allowed:
        allowed, notes = fast, ["performance cores only"]
    nodes = [
        found
        for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
        if (found := _cpu_list(path / "cpulist") & allowed)
    ]
    if len(nodes) > 1:
        allowed = max(nodes, key=len)
        notes.append(f"one of {len(nodes)} NUMA nodes")
    cores = {_siblings(root, cpu) & frozenset(allowed) or frozenset({cpu}) for cpu in allowed}
    count = max(1, len(cores))
    if len(cores) < len(allowed):
        notes.append("no hyperthreads")
    quota = min((value for value in _quotas(root)), default=None)
    if quota is not None and quota < count:
        count = max(1, int(quota))
        notes.append(f"cgroup quota of {quota:g} CPUs")
    reason = f" ({', '.join(notes)})" if notes else ""
    if ranks > 1:
        share = max(1, count // ranks)
        return Threads(share, f"{share} for each of {ranks} ranks, of {count} of {len(affinity)} CPUs{reason}")
    return Threads(count, f"{count} of {len(affinity)} CPUs{reason}")


def memory_limit(root: Path, own_bytes: int, wanted: int) -> MemoryLimit:
    """Bytes for weights, KV and workspace: `wanted`, or 70 % of the least of what is free (and ours) and every cgroup's limit."""
    if wanted > 0:
        return MemoryLimit(wanted, "memory.limit_mib")
    bounds = [(_meminfo(root, "MemAvailable") + own_bytes, "free memory")]
    bounds += [(value, "the cgroup's memory limit") for value in _memory_limits(root)]
    value, what = min(bounds)
    return MemoryLimit(int(value * MEMORY_SHARE), f"{MEMORY_SHARE:.0%} of {what} ({value / 2**30:.1f} GiB)")


def own_bytes(root: Path) -> int:
    """Resident bytes of this process."""
    try:
        return int(root.joinpath("proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0


def cpu_model(root: Path) -> str:
    """The processor's name, empty where /proc/cpuinfo has none."""
    try:
        lines = root.joinpath("proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _meminfo(root: Path, key: str) -> int:
    try:
        for line in root.joinpath("proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == key:
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 1 << 30  # unknown: stay small


def _cpu_list(path: Path) -> set[int]:
    """A kernel CPU list, `0-3,8`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    return frozenset(_cpu_list(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or frozenset({cpu})


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, is v2) of the process's cgroup and all that enclose it."""
    try:
        lines = root.joinpath("proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if unified else controller)
        here = top / path.strip("/")
        while True:
            yield here, unified
            if here == top:
                break
            here = here.parent


def _number(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _quotas(root: Path) -> Iterator[float]:
    for folder, unified in _cgroups(root, "cpu"):
        if unified:
            words = _number(folder / "cpu.max")
        else:
            words = _number(folder / "cpu.cfs_quota_us") + _number(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0] not in ("max", "-1"):
            yield int(words[0]) / int(words[1])


def _memory_limits(root: Path) -> Iterator[int]:
    for folder, unified in _cgroups(root, "memory"):
        words = _number(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        if words and words[0] != "max" and int(words[0]) < _NO_LIMIT:
            yield int(words[0])
