"""Queries, keys and values that a GGUF's converter has put into one tensor, `attn_qkv`, as the three that they are. Pure.

Its rows are all queries, then keys, then values, so each is a run of bytes, and nothing is copied. Where a hybrid model's recurrent
layers have a tensor of this name, it is another thing, and stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from helexa.formats.tensor_info import TensorInfo

_FUSED = re.compile(r"(blk\.\d+\.)attn_qkv\.(weight|bias)")


def taken_apart(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors of a GGUF, with none that holds queries, keys and values; one whose rows are not told by the metadata stays."""
    key_rows = _key_rows(metadata)
    result: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        match = _FUSED.fullmatch(name)
        parts = {f"{match[1]}attn_{part}.{match[2]}": part for part in "qkv"} if match else {}
        recurs = match is not None and f"{match[1]}ssm_conv1d.weight" in tensors
        queries = _rows(info) - 2 * key_rows
        if not parts or recurs or key_rows <= 0 or queries <= 0 or not parts.keys().isdisjoint(tensors):
            result[name] = info
            continue
        first = 0
        for part, count in zip(parts, (queries, key_rows, key_rows), strict=True):
            result[part] = _slice(info, part, first, count)
            first += count
    return result


def _key_rows(metadata: Mapping[str, Any]) -> int:
    """Rows of all keys of a layer, and so of all values; 0 where the metadata do not say."""
    name = metadata.get("general.architecture")
    heads = metadata.get(f"{name}.attention.head_count")
    kv_heads = metadata.get(f"{name}.attention.head_count_kv", heads)
    width = metadata.get(f"{name}.embedding_length")
    numbers = [value if isinstance(value, int) and value > 0 else 0 for value in (heads, kv_heads, width)]
    if not all(numbers):
        return 0
    head_dim = metadata.get(f"{name}.attention.key_length", numbers[2] // numbers[0])
    return numbers[1] * head_dim if isinstance(head_dim, int) else 0


def _rows(info: TensorInfo) -> int:
    """Of a matrix, or the length of a vector."""
    return info.shape[0] if len(info.shape) <= 2 else 0


def _slice(info: TensorInfo, name: str, first: int, count: int) -> TensorInfo:
    row = info.nbytes // info.shape[0]
    return replace(info, name=name, shape=(count, *info.shape[1:]), offset=info.offset + first * row, nbytes=count * row)
