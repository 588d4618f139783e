"""Configs of hybrid models as they are published, flat or beside a vision tower, against what `transformers` makes of the same fields;
and what their memory is taken to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helexa.catalogue.model_shape import read_shape
from helexa.formats.checkpoint import Checkpoint, open_checkpoint
from workers.models.hybrid_config import HybridConfig, from_hugging_face
from workers.ops.native import library
from workers.ops.native.ops import NativeOps
from workers.ops.reference import ReferenceOps

transformers = pytest.importorskip("transformers", minversion="5.0")
safetensors = pytest.importorskip("safetensors.numpy")

LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    **LINEAR,
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
}
TEXT_35: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    **LINEAR,
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "linear_num_value_heads": 48,
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "vocab_size": 248320,
}
PUBLISHED = {
    "next": (NEXT, transformers.Qwen3NextConfig(**NEXT)),
    "35": ({"model_type": "qwen3_5", "text_config": TEXT_35, "vision_config": {}}, transformers.Qwen3_5TextConfig(**TEXT_35)),
    "35-text": (TEXT_35, transformers.Qwen3_5TextConfig(**TEXT_35)),
}


def checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file({"one": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return open_checkpoint(folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_of_the_outside_config(tmp_path: Path, name: str) -> None:
    """Layers, heads, rotation and experts."""
    published, outside = PUBLISHED[name]
    config = from_hugging_face(checkpoint(tmp_path, published), mtp_layers=1)
    assert [("linear_attention" if recurs else "full_attention") for recurs in config.recurs] == outside.layer_types
    assert (config.width, config.heads, config.kv_heads, config.head_dim) == (
        outside.hidden_size,
        outside.num_attention_heads,
        outside.num_key_value_heads,
        outside.head_dim,
    )
    rope = outside.rope_parameters
    rotary = int(outside.head_dim * rope["partial_rotary_factor"])
    expected = 1.0 / rope["rope_theta"] ** (np.arange(0, rotary, 2) / rotary)
    assert config.rope.neox and np.allclose(config.rope.inv_freq, expected, rtol=1e-12)
    assert (config.experts, config.top_k, config.shared_hidden) == ((512, 10, 512) if name == "next" else (0, 0, 0))
    assert isinstance(config, HybridConfig) and config.recurrent.layers == outside.layer_types.count("linear_attention")


@pytest.mark.parametrize("name", PUBLISHED)
def test_memory_is_what_the_ops_take(tmp_path: Path, name: str) -> None:
    """`helexa plan` counts the bytes that the ops hold of a sequence, which the native ones pad by little."""
    file = checkpoint(tmp_path, PUBLISHED[name][0])
    shape, config = read_shape(file), from_hugging_face(file, mtp_layers=0)
    assert shape.kv_bytes_per_token == 2 * config.attention_layers * config.kv_heads * config.head_dim * 2
    per_layer = 4 * (3 * config.recurrent.channels + config.recurrent.value_heads * 128 * 128)
    assert shape.state_bytes == config.recurrent.layers * per_layer
    assert ReferenceOps(1).bytes_per_state(config.recurrent) == shape.state_bytes
    if library.why_missing() is None:
        assert shape.state_bytes <= NativeOps(1, 1, 1).bytes_per_state(config.recurrent) < 1.01 * shape.state_bytes
