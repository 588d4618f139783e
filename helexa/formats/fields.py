"""A model's metadata below one prefix, with the defaults of its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint

LARGEST = 2**24

T = TypeVar("T")
D = TypeVar("D")
_REQUIRED: Any = object()
_ABSENT: Any = object()


@dataclass(frozen=True)
class Fields:
    """`prefix` is `llama.` in a GGUF of that architecture, `text_config.` where a config.json holds the language model in a table,
    else empty. `defaults` are for keys that a file may leave out because its architecture fixes them."""

    file: Checkpoint
    prefix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.file.path

    def states(self, key: str) -> bool:
        """Whether the file has the key at all, if only as null."""
        return self._at(key) is not _ABSENT

    def _at(self, key: str) -> Any:
        """The value as it is; a dot leads into a table of a config.json."""
        at: Any = self.file.metadata
        for name in (self.prefix + key).split(".") if self.file.format == "safetensors" else [self.prefix + key]:
            if not isinstance(at, Mapping) or name not in at:
                return _ABSENT
            at = at[name]
        return at

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[Any], default: Any = _REQUIRED) -> Any:
        """As `Checkpoint.get`; an architecture's default goes before `default`."""
        if key in self.defaults:
            default = self.defaults[key]
        if default is _REQUIRED:
            return self.file.get(self.prefix + key, kind)
        return self.file.get(self.prefix + key, kind, default)

    def optional(self, key: str, kind: type[T]) -> T | None:
        """As `get`, but null means none, and not the architecture's default."""
        return self.file.get(self.prefix + key, kind, None) if self.states(key) else self.defaults.get(key)

    def expect(self, key: str, *served: str) -> None:
        """ModelFileError where the file states anything else."""
        value = self.get(key, str, served[0])
        if value not in served:
            raise self.error(key, value, f"is not served; served: {', '.join(served)}")

    def count(self, key: str, default: Any = _REQUIRED) -> int:
        """A whole number above 0. ModelFileError for another."""
        value = self.get(key, int) if default is _REQUIRED else self.get(key, int, default)
        if not 0 < value < LARGEST:
            raise self.error(key, value, "is not a size")
        return value

    def flags(self, key: str, count: int) -> list[bool] | None:
        """A truth value a layer, where the file lists them; more than there are layers are cut off."""
        value = self._at(key)
        if not isinstance(value, list | np.ndarray):
            return None
        flags = [bool(item) for item in value]
        if len(flags) < count:
            raise self.error(key, f"{len(flags)} entries", f"is too short for {count} layers")
        return flags[:count]

    def error(self, key: str, value: object, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {self.prefix}{key} = {value} {problem}")
