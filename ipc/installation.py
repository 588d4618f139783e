"""Whether the packages of this process are one installation: a stray `workers/` or `ipc.py` must never run as ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("helexa", "workers", "ipc", "kernels_cupy")


def folder() -> Path:
    """The one folder that holds the four packages. Raises RuntimeError naming the stray one."""
    found: dict[str, Path] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise RuntimeError(f"the package `{name}` is missing; reinstall helexa")
        origin = Path(spec.origin).resolve()
        if origin.name != "__init__.py":
            raise RuntimeError(f"`{name}` is {origin}, not helexa's; start helexa from another folder or rename that file")
        found[name] = origin.parent.parent
    ours = Path(__file__).resolve().parent.parent
    for name, parent in found.items():
        if parent != ours:
            raise RuntimeError(
                f"`{name}` comes from {parent}, helexa is in {ours}; remove the stray package from the import path"
            )
    return ours
