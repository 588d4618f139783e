"""A GGUF again, with its tensors joined as converters may do: queries, keys and values in one; gates and ups of experts in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def fuse(source: Path, target: Path, *, biases: bool = True) -> Path:
    """`biases`: those of queries, keys and values are joined too."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    tensors = {tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors}
    fused = _fused(tensors, biases)
    assert len(fused) < len(tensors), "nothing to join"
    for name, (data, kind) in fused.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _fused(tensors: dict[str, tuple[Array, Any]], biases: bool) -> dict[str, tuple[Array, Any]]:
    result = dict(tensors)
    for name in tensors:
        prefix, _, role = name.rpartition(".attn_q.")
        if prefix and (biases or role == "weight"):
            _join(result, [f"{prefix}.attn_{part}.{role}" for part in "qkv"], f"{prefix}.attn_qkv.{role}", 0)
        prefix, found, _ = name.rpartition(".ffn_gate_exps.")
        if found:
            _join(result, [f"{prefix}.ffn_{side}_exps.weight" for side in ("gate", "up")], f"{prefix}.ffn_gate_up_exps.weight", 1)
    return result


def _join(tensors: dict[str, tuple[Array, Any]], names: list[str], target: str, axis: int) -> None:
    parts = [tensors.pop(name) for name in names]
    tensors[target] = np.concatenate([data for data, _ in parts], axis=axis), parts[0][1]
