"""Qwen3 (Yang et al. 2025): a Qwen2 without biases, whose queries and keys are normed a head at a time, and whose heads may be wider
than the model divided by them."""

from __future__ import annotations

from helexa.formats.checkpoint import Checkpoint
from workers.layers.decoder import Decoder
from workers.layers.weights import GGUF_NAMES, HF_NAMES
from workers.models import qwen2
from workers.ops.protocol import Ops
from workers.weights.tensors import Tensors

QWEN3_GGUF_NAMES = {
    **GGUF_NAMES,
    "q_norm": "blk.{layer}.attn_q_norm.weight",
    "k_norm": "blk.{layer}.attn_k_norm.weight",
}
QWEN3_HF_NAMES = {
    **HF_NAMES,
    "q_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{layer}.self_attn.k_norm.weight",
}


def load(file: Checkpoint, tensors: Tensors, ops: Ops) -> Decoder:
    """Head norms and biases are taken where the file has them."""
    return qwen2.load_with_names(file, tensors, ops, QWEN3_GGUF_NAMES if file.format == "gguf" else QWEN3_HF_NAMES)
