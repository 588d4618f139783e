"""Qwen3.5: Gated DeltaNet and gated attention, dense or with a mixture of experts (Qwen team, 2026). Text only.

A GGUF has the value heads of all key heads in turn (`tiled`, see RecurrentShape), a Hugging Face file those of a key head together.
"""

from __future__ import annotations

from helexa.formats.checkpoint import Checkpoint
from workers.models.hybrid import Hybrid
from workers.models.hybrid_config import HybridConfig, from_gguf, from_hugging_face
from workers.models.hybrid_loading import DeltaHeads, DeltaInputs, HybridLoader, LayerTensors
from workers.models.hybrid_names import gguf_names, hugging_face_names
from workers.ops.protocol import Ops
from workers.weights.reshaping import rows_within
from workers.weights.tensors import Tensors

VISION = "model.visual."


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Hybrid:
    """Raises ModelFileError."""
    if file.format == "gguf":
        config = from_gguf(file, tiled=True)
        names = gguf_names(len(config.recurs))
    else:
        config = from_hugging_face(file, mtp_layers=int("mtp.fc.weight" in tensors))
        with_vision = "model.language_model.embed_tokens.weight" in tensors
        names = hugging_face_names("model.language_model." if with_vision else "model.")
        for name in [name for name in file.tensors if name.startswith(VISION)]:
            tensors.ignore(name)
    return HybridLoader(file, tensors, ops, config, names, _delta_inputs).load()


def _delta_inputs(tensors: LayerTensors, config: HybridConfig, here: DeltaHeads) -> DeltaInputs:
    shape, width = config.recurrent, config.width
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    return DeltaInputs(
        rows_within(tensors.take("mixed", 2 * keys + values, width), here.channels),
        rows_within(tensors.take("gate", values, width), here.value_rows),
        [row for role in ("b", "a") for row in rows_within(tensors.take(role, shape.value_heads, width), here.values)],
    )
