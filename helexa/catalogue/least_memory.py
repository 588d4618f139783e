"""What a model in the cache takes of memory at the very least, before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from helexa.catalogue.memory_plan import least_bytes
from helexa.catalogue.model_shape import read_shape
from helexa.config import Config
from helexa.errors import ModelFileError
from helexa.formats.checkpoint import open_checkpoint


def least_memory(files: Mapping[str, str], context: int, config: Config) -> int:
    """Bytes; `context` 0: what the model was trained for. 0 where the file cannot be read: who loads it says why."""
    opened = files.get("gguf") or files.get("safetensors")
    if opened is None:
        return sum(size(Path(path)) for path in files.values())
    try:
        file = open_checkpoint(opened)
        shape = read_shape(file)
        file.close()
    except (ModelFileError, OSError):
        return 0
    weights = shape.float_bytes if config.cpu.ops == "reference" else shape.packed_bytes
    return least_bytes(
        weights,
        shape.bytes_per_block,
        min(context or shape.context, shape.context),
        config.memory.kv_blocks,
        shape.state_bytes,
        config.devices.tensor_parallel,
    )


def size(path: Path) -> int:
    """Bytes of a file, or of a folder's files."""
    try:
        return sum(item.stat().st_size for item in (path.iterdir() if path.is_dir() else [path]) if item.is_file())
    except OSError:
        return 0
