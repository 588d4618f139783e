"""What a model says of its size, without loading it. Pure but for the open file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import Shape, fields_of
from helexa.formats.ggml_types import packed_bytes
from helexa.formats.recurrent_sizes import recurrent_sizes

BLOCK_SIZE = 16  # tokens
KV_BYTES = 2  # float16


@dataclass(frozen=True)
class ModelShape:
    """`packed_bytes` and `float_bytes`: the weights as the native ops pack them, which is nearly as in the file, and as float32,
    which the reference ops make of them."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    packed_bytes: int
    float_bytes: int
    recurrent_layers: int = 0  # of the layers, those that hold no KV
    state_bytes: int = 0  # that these hold of a sequence
    key_heads: int = 0  # of these layers; 0: there are none

    @property
    def most_ranks(self) -> int:
        """That it can be split over: each takes whole groups of heads that share KV or, in recurrent layers, a key."""
        return min(self.kv_heads, self.key_heads or self.kv_heads)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * (self.layers - self.recurrent_layers) * self.kv_heads * self.head_dim * KV_BYTES

    @property
    def bytes_per_block(self) -> int:
        return self.kv_bytes_per_token * BLOCK_SIZE


def read_shape(file: Checkpoint) -> ModelShape:
    """Raises ModelFileError where the file does not say, or says what does not fit together."""
    shape = Shape.of(fields_of(file))
    recurrent = recurrent_sizes(file)
    return ModelShape(
        architecture=file.get("general.architecture" if file.format == "gguf" else "model_type", str),
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab=shape.vocab,
        context=shape.context,
        packed_bytes=sum(packed_bytes(tensor.type, math.prod(tensor.shape)) for tensor in file.tensors.values()),
        float_bytes=sum(4 * math.prod(tensor.shape) for tensor in file.tensors.values()),
        recurrent_layers=sum(recurrent.recurs) if recurrent is not None else 0,
        state_bytes=recurrent.state_bytes if recurrent is not None else 0,
        key_heads=recurrent.key_heads if recurrent is not None else 0,
    )


def read_outline(file: Checkpoint) -> tuple[str, int, int]:
    """(architecture, layers, context), of a file that need not be one that is served; 0 where it does not say."""
    if file.format == "gguf":
        name = file.get("general.architecture", str, "")
        return name, file.get(f"{name}.block_count", int, 0), file.get(f"{name}.context_length", int, 0)
    inside = "text_config." if file.get("text_config", dict, {}) else ""
    layers, context = (file.get(f"{inside}{key}", int, 0) for key in ("num_hidden_layers", "max_position_embeddings"))
    return file.get(f"{inside}model_type", str, file.get("model_type", str, "")), layers, context
