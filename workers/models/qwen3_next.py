"""Qwen3-Next: Gated DeltaNet and gated attention, with a mixture of experts (Qwen team, 2025).

A Hugging Face file keeps the rows of a key head and of the value heads that read it together; so do b and a in a GGUF, whose
queries, keys, values and gates are apart, unless it is an early one.
"""

from __future__ import annotations

import numpy as np

from helexa.formats.checkpoint import Checkpoint
from workers.models.hybrid import Hybrid
from workers.models.hybrid_config import HybridConfig, from_gguf, from_hugging_face
from workers.models.hybrid_loading import DeltaHeads, DeltaInputs, HybridLoader, LayerTensors
from workers.models.hybrid_names import gguf_names, hugging_face_names
from workers.ops.protocol import Ops, RawTensor
from workers.weights.reshaping import rows_in_order, rows_within
from workers.weights.tensors import Tensors


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Hybrid:
    """Raises ModelFileError."""
    if file.format == "gguf":
        config = from_gguf(file, tiled=False)
        names = gguf_names(len(config.recurs))
    else:
        config = from_hugging_face(file, mtp_layers=int("mtp.fc.weight" in tensors))
        names = hugging_face_names("model.")
    return HybridLoader(file, tensors, ops, config, names, _delta_inputs).load()


def _delta_inputs(tensors: LayerTensors, config: HybridConfig, here: DeltaHeads) -> DeltaInputs:
    shape, width = config.recurrent, config.width
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    of_key_head = shape.value_heads // shape.key_heads
    together = tensors.rows("ba", here.keys.times(2 * of_key_head), width)
    ba = _by_kind(together, here.keys.width, [of_key_head, of_key_head])
    if not tensors.has("mixed_and_gate"):
        mixed = rows_within(tensors.take("mixed", 2 * keys + values, width), here.channels)
        return DeltaInputs(mixed, rows_within(tensors.take("gate", values, width), here.value_rows), ba)
    kinds = [shape.key_dim, shape.key_dim, of_key_head * shape.value_dim, of_key_head * shape.value_dim]
    *mixed, gate = _by_kind(tensors.rows("mixed_and_gate", here.keys.times(sum(kinds)), width), here.keys.width, kinds)
    return DeltaInputs(mixed, [gate], ba)


def _by_kind(tensor: RawTensor, heads: int, kinds: list[int]) -> list[RawTensor]:
    """A tensor whose rows hold so many rows of each kind, a head, taken apart by kind."""
    rows = np.arange(tensor.shape[0]).reshape(heads, sum(kinds))
    return [rows_in_order(tensor, part.reshape(-1)) for part in np.split(rows, np.cumsum(kinds)[:-1], axis=1)]
