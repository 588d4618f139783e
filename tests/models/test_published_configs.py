"""Configs as published models have them, sparse and of several ages, against what `transformers` makes of the same fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helexa.errors import ModelFileError
from helexa.formats.decoder_shape import Shape, fields_of
from helexa.formats.safetensors import SafetensorsCheckpoint
from workers.layers import rope
from workers.models.gemma3 import GemmaConfig
from workers.models.llama import LlamaConfig
from workers.models.qwen2 import Qwen2Config
from workers.models.qwen3_moe import Qwen3MoeConfig
from workers.models.smollm3 import SmolLM3Config

transformers = pytest.importorskip("transformers")

LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def sizes(width: int, hidden: int, layers: int, heads: int, kv_heads: int, vocab: int, context: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "llama 2": {"model_type": "llama", **sizes(4096, 11008, 32, 32, 32, 32000, 4096), "rope_scaling": None},
    "llama 3.2": {
        "model_type": "llama",
        **sizes(2048, 8192, 16, 32, 8, 128256, 131072),
        "head_dim": 64,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3,
        "tie_word_embeddings": True,
    },
    "mistral 0.1": {"model_type": "mistral", **sizes(4096, 14336, 32, 32, 8, 32000, 32768), "sliding_window": 4096},
    "mistral 0.3": {
        "model_type": "mistral",
        **sizes(4096, 14336, 32, 32, 8, 32768, 32768),
        "rope_theta": 1000000.0,
        "sliding_window": None,
    },
    "mistral, no word of a window": {"model_type": "mistral", **sizes(4096, 14336, 32, 32, 8, 32000, 32768)},
    "smollm3": {
        "model_type": "smollm3",
        **sizes(2048, 11008, 36, 16, 4, 128256, 65536),
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "rope_theta": 5000000.0,
        "rope_scaling": None,
        "use_sliding_window": False,
        "layer_types": ["full_attention"] * 36,
    },
    "qwen 2.5": {
        "model_type": "qwen2",
        **sizes(896, 4864, 24, 14, 2, 151936, 32768),
        "max_window_layers": 21,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "qwen 2.5, stretched": {
        "model_type": "qwen2",
        **sizes(896, 4864, 24, 14, 2, 151936, 131072),
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "qwen 2, windows in upper layers": {
        "model_type": "qwen2",
        **sizes(896, 4864, 24, 14, 2, 151936, 131072),
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 12,
    },
    "qwen 3": {
        "model_type": "qwen3",
        **sizes(1024, 3072, 28, 16, 8, 151936, 40960),
        "head_dim": 128,
        "max_window_layers": 28,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "qwen 3, no word of its heads": {"model_type": "qwen3", **sizes(1024, 3072, 28, 16, 8, 151936, 40960)},
    "qwen 3, experts": {
        "model_type": "qwen3_moe",
        **sizes(2048, 6144, 48, 32, 4, 151936, 40960),
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "gemma 2": {
        "model_type": "gemma2",
        **sizes(2304, 9216, 26, 8, 4, 256000, 8192),
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
    },
    "gemma 3": {
        "model_type": "gemma3_text",
        **sizes(1152, 6912, 26, 4, 1, 262144, 32768),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
}
# As it is published: next to nothing, below `text_config`.
GEMMA3_WITH_VISION = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}

READERS = {
    "llama": LlamaConfig,
    "mistral": LlamaConfig,
    "smollm3": SmolLM3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen2Config,
    "qwen3_moe": Qwen3MoeConfig,
    "gemma2": GemmaConfig,
    "gemma3_text": GemmaConfig,
    "gemma3": GemmaConfig,
}


class Config(SafetensorsCheckpoint):
    """A config.json without weights."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.path, self.metadata, self.tensors = Path("model"), metadata, {}


def read(metadata: dict[str, Any]) -> Any:
    return READERS[metadata["model_type"]].from_hf(Config(metadata))  # type: ignore[attr-defined]


def outside_config(metadata: dict[str, Any]) -> Any:
    kind = {"gemma3": "gemma3_text"}.get(metadata["model_type"], metadata["model_type"])
    fields = {key: value for key, value in metadata.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(kind, **fields)


def outside_rope(outside: Any, kind: str = "") -> tuple[np.ndarray[Any, Any], float]:
    """Frequencies and scale of rotary columns, for one layer type."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = outside.rope_parameters[kind] if kind else outside.rope_parameters
    if parameters["rope_type"] == "default":
        return rope.inverse_frequencies(parameters["rope_theta"], head_dim_of(outside)), 1.0
    inv_freq, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](outside, device="cpu", layer_type=kind or None)
    return inv_freq.numpy(), scale


def head_dim_of(outside: Any) -> int:
    return getattr(outside, "head_dim", None) or outside.hidden_size // outside.num_attention_heads


def assert_same(config: Any, outside: Any) -> None:
    shape: Shape = config.shape
    assert shape.head_dim == head_dim_of(outside) and shape.kv_heads == outside.num_key_value_heads
    assert (shape.vocab, shape.context) == (outside.vocab_size, outside.max_position_embeddings)
    assert (shape.eps, shape.tied) == (outside.rms_norm_eps, outside.tie_word_embeddings)
    windows = getattr(config, "windows", None) or (config.window,) * shape.layers
    types = getattr(outside, "layer_types", None) or ["sliding_attention"] * shape.layers
    window = getattr(outside, "sliding_window", None) or 0
    assert windows == tuple(window if kind == "sliding_attention" else 0 for kind in types)


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_windows_and_rotary_embeddings(name: str) -> None:
    """All that the architecture needs beyond the tensors."""
    config, outside = read(CONFIGS[name]), outside_config(CONFIGS[name])
    assert_same(config, outside)
    ropes = {"": getattr(config, "rope", None) or getattr(config, "ropes", [None])[0]}
    if isinstance(config, GemmaConfig):
        nested = CONFIGS[name]["model_type"] != "gemma2"
        ropes = {"full_attention" if nested else "": config.global_rope, "sliding_attention" if nested else "": config.local_rope}
    for kind, own in ropes.items():
        inv_freq, scale = outside_rope(outside, kind)
        assert np.allclose(own.inv_freq, inv_freq, rtol=1e-5) and own.scale == pytest.approx(scale)


def test_a_config_that_leaves_out_what_gemma_3_fixes() -> None:
    """Below `text_config`, next to a vision tower."""
    metadata = {"model_type": "gemma3", "text_config": GEMMA3_WITH_VISION, "vision_config": {}}
    config, outside = read(metadata), outside_config(GEMMA3_WITH_VISION)
    assert_same(config, outside)
    assert (config.shape.heads, config.scale) == (8, 1 / 16)
    assert np.allclose(config.global_rope.inv_freq, outside_rope(outside, "full_attention")[0], rtol=1e-5)
    assert np.allclose(config.local_rope.inv_freq, outside_rope(outside, "sliding_attention")[0], rtol=1e-5)


def test_layers_that_are_not_rotated() -> None:
    """SmolLM3's, listed or by their interval."""
    listed = CONFIGS["smollm3"]
    unlisted = {key: value for key, value in listed.items() if key != "no_rope_layers"} | {"no_rope_layer_interval": 3}
    for metadata in (listed, unlisted):
        expected = outside_config(metadata).no_rope_layers
        assert [int(layer.inv_freq.size > 0) for layer in read(metadata).ropes] == expected


def test_layers_without_experts() -> None:
    """Every third layer from the third has experts, but for one that is named."""
    metadata = CONFIGS["qwen 3, experts"] | {"num_hidden_layers": 9, "decoder_sparse_step": 3, "mlp_only_layers": [5]}
    assert read(metadata).sparse == (False, False, True, False, False, False, False, False, True)


@pytest.mark.parametrize(
    "name,change,problem",
    [
        ("llama 2", {"hidden_act": "gelu"}, "hidden_act = gelu is not served"),
        ("llama 2", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type = dynamic is not served"),
        ("llama 2", {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = 2 is not a number"),
        ("llama 2", {"rope_scaling": {"type": "linear", "factor": 0.0}}, "make no embedding"),
        ("llama 2", {"partial_rotary_factor": 0.01}, "1 rotary columns do not fit"),
        ("llama 2", {"num_key_value_heads": 5}, "cannot share 5 KV heads"),
        ("llama 2", {"num_hidden_layers": 0}, "num_hidden_layers = 0 is not a size"),
        ("llama 2", {"vocab_size": "many"}, "vocab_size is of type str"),
        ("gemma 3", {"attn_logit_softcapping": 50.0}, "is not part of this architecture"),
        ("gemma 3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma 3", {"layer_types": ["full_attention"]}, "is not served for 26 layers"),
        ("smollm3", {"layer_types": ["chunked_attention"] * 36}, "chunked_attention"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "is too short for 36 layers"),
    ],
)
def test_what_is_not_served_is_refused(name: str, change: dict[str, Any], problem: str) -> None:
    """With the field and its value, before any tensor is read."""
    with pytest.raises(ModelFileError, match=problem):
        read(CONFIGS[name] | change)


def test_fields_tell_null_from_absent() -> None:
    """A null takes the architecture's default away; an absent key has it."""
    for metadata, expected in (({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 7}, 7)):
        fields = fields_of(Config({"model_type": "mistral", **metadata}))
        assert fields.optional("sliding_window", int) == expected
        assert fields.states("sliding_window") == bool(metadata)
