"""Which layers of a hybrid model keep a state of one size in place of KV, and how large it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint

GGUF_ARCHITECTURES = frozenset({"qwen3next", "qwen35", "qwen35moe"})
DEFAULT_INTERVAL = 4  # every so many layers is one of attention
FLOAT_BYTES = 4


@dataclass(frozen=True)
class RecurrentSizes:
    """`recurs`: of each layer, whether it does; else it attends. The rest as in RecurrentShape (workers/ops/protocol.py)."""

    recurs: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def state_bytes(self) -> int:
        """Of a sequence, less what ops pad it with."""
        channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        floats = (self.kernel - 1) * channels + self.value_heads * self.key_dim * self.value_dim
        return FLOAT_BYTES * sum(self.recurs) * floats


def recurrent_sizes(file: Checkpoint) -> RecurrentSizes | None:
    """None for a model of attention alone. Raises ModelFileError."""
    if file.format == "gguf":
        name = file.get("general.architecture", str)
        return _of_gguf(file, name) if name in GGUF_ARCHITECTURES else None
    inside = "text_config." if file.get("text_config", dict, {}) else ""
    return _of_config(file, inside) if file.get(f"{inside}linear_num_value_heads", int, 0) else None


def size_of(file: Checkpoint, key: str, default: int | None = None) -> int:
    """A count from the metadata that could be one. Raises ModelFileError."""
    value = file.get(key, int) if default is None else file.get(key, int, default)
    if not 0 < value < 2**24:
        raise ModelFileError(f"{file.path}: {key} = {value} is not a size")
    return value


def _of_gguf(file: Checkpoint, name: str) -> RecurrentSizes:
    layers = size_of(file, f"{name}.block_count") - file.get(f"{name}.nextn_predict_layers", int, 0)
    stated = file.metadata.get(f"{name}.attention.recurrent_layers")
    recurs = tuple(bool(value) for value in list(stated)[:layers]) if stated is not None else ()
    value_heads = size_of(file, f"{name}.ssm.time_step_rank")
    return RecurrentSizes(
        recurs=recurs or _by_interval(layers, size_of(file, f"{name}.full_attention_interval", DEFAULT_INTERVAL)),
        key_heads=size_of(file, f"{name}.ssm.group_count"),
        value_heads=value_heads,
        key_dim=size_of(file, f"{name}.ssm.state_size"),
        value_dim=size_of(file, f"{name}.ssm.inner_size") // value_heads,
        kernel=size_of(file, f"{name}.ssm.conv_kernel"),
    )


def _of_config(file: Checkpoint, inside: str) -> RecurrentSizes:
    layers = size_of(file, f"{inside}num_hidden_layers")
    types = file.get(f"{inside}layer_types", list, [])
    if types and (set(types) - {"linear_attention", "full_attention"} or len(types) != layers):
        raise ModelFileError(f"{file.path}: layer_types are not {layers} of linear_attention and full_attention")
    recurs = tuple(kind == "linear_attention" for kind in types)
    return RecurrentSizes(
        recurs=recurs or _by_interval(layers, size_of(file, f"{inside}full_attention_interval", DEFAULT_INTERVAL)),
        key_heads=size_of(file, f"{inside}linear_num_key_heads"),
        value_heads=size_of(file, f"{inside}linear_num_value_heads"),
        key_dim=size_of(file, f"{inside}linear_key_head_dim"),
        value_dim=size_of(file, f"{inside}linear_value_head_dim"),
        kernel=size_of(file, f"{inside}linear_conv_kernel_dim"),
    )


def _by_interval(layers: int, interval: int) -> tuple[bool, ...]:
    return tuple(bool((index + 1) % interval) for index in range(layers))
