"""What a model file says of its size, without loading it. Pure but for the open file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helexa.formats.gguf import GGUFFile

BLOCK_SIZE = 16  # tokens
KV_BYTES = 2  # float16


@dataclass(frozen=True)
class ModelShape:
    """`file_bytes` and `float_bytes`: the weights as in the file, which the native ops keep, and as float32, which the reference
    ops make of them."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    file_bytes: int
    float_bytes: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * KV_BYTES

    @property
    def bytes_per_block(self) -> int:
        return self.kv_bytes_per_token * BLOCK_SIZE


def read_shape(file: GGUFFile) -> ModelShape:
    """Raises ModelFileError where the file does not say."""
    name = file.get("general.architecture", str)
    heads = file.get(f"{name}.attention.head_count", int)
    width = file.get(f"{name}.embedding_length", int)
    return ModelShape(
        architecture=name,
        layers=file.get(f"{name}.block_count", int),
        heads=heads,
        kv_heads=file.get(f"{name}.attention.head_count_kv", int, heads),
        head_dim=file.get(f"{name}.attention.key_length", int, width // max(1, heads)),
        vocab=len(file.get("tokenizer.ggml.tokens", list)),
        context=file.get(f"{name}.context_length", int),
        file_bytes=sum(tensor.nbytes for tensor in file.tensors.values()),
        float_bytes=sum(4 * math.prod(tensor.shape) for tensor in file.tensors.values()),
    )
