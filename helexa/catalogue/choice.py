"""Which of several model files a name means. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from helexa.errors import ModelSourceError


class Candidate(NamedTuple):
    """A file that a source offers: its path there, and its size where known."""

    path: str
    bytes: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def choose(files: Sequence[Candidate], pick: str, source: str) -> Candidate:
    """The one GGUF file that `pick` names: a path, a file name, or a quantisation in the file name; empty: the only one there is.

    ModelSourceError lists the candidates with their sizes.
    """
    candidates = [file for file in files if file.name.lower().endswith(".gguf")]
    if not candidates:
        other = " (it has safetensors, which are not served)" if any(file.name.endswith(".safetensors") for file in files) else ""
        raise ModelSourceError(f"{source}: there is no .gguf file{other}; choose a source that carries GGUF")
    exact = [file for file in candidates if pick in (file.path, file.name)]
    chosen = exact or [file for file in candidates if _matches(file.name, pick)]
    if len(chosen) == 1:
        part = re.search(r"-(\d+)-of-(\d+)\.gguf$", chosen[0].name)
        if part and int(part[2]) > 1:
            raise ModelSourceError(f"{source}: {chosen[0].name} is one of {int(part[2])} parts; models in parts are not served")
        return chosen[0]
    what = f"{len(chosen)} files fit {pick}" if chosen and pick else f"no file fits {pick}" if pick else f"{len(chosen)} files"
    listed = ", ".join(f"{file.path} ({size(file.bytes)})" for file in sorted(chosen or candidates)[:40])
    raise ModelSourceError(f"{source}: {what}; add :FILE or :QUANT to the name, of: {listed}")


def _matches(name: str, pick: str) -> bool:
    """A projector is no model of its own; a quantisation stands between separators, and Q4_K is not Q4_K_M."""
    if name.startswith("mmproj"):
        return False
    return not pick or re.search(rf"(^|[-._]){re.escape(pick)}([-.]|$)", name, re.IGNORECASE) is not None


def size(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def plain_name(name: str) -> str:
    """A file name without anything a path or a shell could take for its own."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", re.split(r"[/\\]", name)[-1]).lstrip(".-") or "model.gguf"
