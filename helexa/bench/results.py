"""Results as JSON lines, each with what is needed to compare it with another: machine, commit, versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helexa import __version__
from helexa.errors import StartError
from ipc import installation
from workers import machine


def surroundings() -> dict[str, Any]:
    """Of this machine and this build; nothing that names a person, a host or a folder."""
    return {
        "machine": {
            "cpu": machine.cpu_model(Path("/")),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "versions": {"helexa": __version__, "python": platform.python_version()},
        "commit": commit(installation.folder()),
    }


def commit(folder: Path) -> str:
    """Of the checkout that helexa runs from, `+` when there are changes; empty where there is none."""
    if not (folder / ".git").exists():
        return ""
    try:
        name = _git(folder, "rev-parse", "HEAD")
        return name + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def append(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """One line a record, at the end of the file. Raises StartError."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)
    except OSError as error:
        raise StartError(f"{path} cannot be written ({error.strerror})") from None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
