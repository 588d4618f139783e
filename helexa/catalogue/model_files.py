"""What a source comes to: files that can be loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelFiles:
    """A model that can be loaded. `files` maps a role to an absolute path: `gguf` to a file, `safetensors` to a file or the folder
    of several; `source` is the canonical spelling."""

    name: str
    source: str
    files: dict[str, str]
    bytes: int
    licence: str
