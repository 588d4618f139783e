"""A model on disk, whatever its format: metadata and tensors by name. `open_checkpoint` finds out which format it is.

| | `metadata` | tensor names | tensor types |
|---|---|---|---|
| `gguf` | the file's key-value pairs, `llama.block_count` | `blk.0.attn_q.weight` | any GGML type |
| `safetensors` | config.json as a dict, `num_hidden_layers` | `model.layers.0.self_attn.q_proj.weight` | F32, F16, BF16 |

Shapes are (..., rows, columns) in both. Query and key rows of a GGUF of the llama architecture are stored for rotary pairs
(2 i, 2 i + 1); those of a Hugging Face checkpoint for pairs (i, i + rotary_dim / 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats import gguf, safetensors
from helexa.formats.tensor_info import TensorInfo

__all__ = ["Checkpoint", "Format", "TensorInfo", "model_path", "open_checkpoint"]

Format = Literal["gguf", "safetensors"]

T = TypeVar("T")
D = TypeVar("D")


class Checkpoint(Protocol):
    """An open model. Every error is a ModelFileError that names the file."""

    @property
    def path(self) -> Path:
        """What errors name: the file, or the folder."""
        ...

    @property
    def format(self) -> Format: ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that decide what is computed: those of the tensors, in order, and config.json where there is one."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[Any], default: Any = ...) -> Any:
        """The metadata value of type `kind` (int, float, bool, str, list, dict, np.ndarray); a whole number is also a float.

        A key that is absent or null gives `default`, or ModelFileError where none is given; another type is always a
        ModelFileError. In config.json a dot leads into a table: `rope_scaling.factor`.
        """
        ...

    def data(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, flat and read-only; a view of the mapped file, nothing is copied. It stays valid after `close`."""
        ...

    def close(self) -> None: ...


def model_path(files: Mapping[str, str]) -> Path:
    """What of a served model's files, by role, is opened: a GGUF file, a .safetensors file, or the folder of several."""
    for role in ("gguf", "safetensors"):
        if role in files:
            return Path(files[role])
    raise ModelFileError(f"a model of {', '.join(files) or 'no files'}: neither gguf nor safetensors")


def open_checkpoint(path: Path | str) -> Checkpoint:
    """A GGUF file (the first of its parts), a .safetensors file with config.json beside it, or a folder that holds either.

    ModelFileError where there is none, or it is damaged.
    """
    path = Path(path)
    if path.is_dir():
        found = gguf.model_files(path)
        if not safetensors.model_files(path) and len(found) == 1:
            return gguf.GGUFFile.open(found[0])
        return safetensors.SafetensorsCheckpoint.open(path)
    if path.suffix in (".safetensors", ".json"):
        return safetensors.SafetensorsCheckpoint.open(path)
    if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
        raise ModelFileError(f"{path}: a pickled file can run code, so none is read; use a .safetensors or .gguf file")
    return gguf.GGUFFile.open(path)
