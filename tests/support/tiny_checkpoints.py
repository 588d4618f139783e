"""Tiny random checkpoints of every architecture, made by `transformers`: as a Hugging Face folder, and the same weights as a GGUF.

A GGUF holds what converters write: queries and keys of some architectures permuted for neighbouring rotary pairs, Gemma's norm
weights plus 1, a layer's experts as one tensor, Llama 3's rotary factors as a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

VOCAB = 97
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """`hf` names the transformers model; `gguf` the architecture of a GGUF, empty where it has no way to say the `config`.
    `facts` are GGUF metadata beyond the common ones."""

    name: str
    hf: str
    gguf: str
    config: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def _sizes(layers: int = 3, width: int = 64, heads: int = 4, kv_heads: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 80,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 256,
        "pad_token_id": None,
        **more,
    }


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **more}}


_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
_YARN_FACTS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
_GEMMA = {"query_pre_attn_scalar": 20, "sliding_window": 9, "head_dim": 16}
_GEMMA_FACTS = {"attention.sliding_window": 9, "attention.scale": 20**-0.5}

CASES = [
    Case("llama", "Llama", "llama", _sizes(tie_word_embeddings=False)),
    Case("llama-tied-bias", "Llama", "llama", _sizes(2, 48, 6, 1, head_dim=24, tie_word_embeddings=True, attention_bias=True)),
    Case("llama-mha", "Llama", "llama", _sizes(2, 40, 5, 5, head_dim=8, rms_norm_eps=1e-3)),
    Case(
        "llama-linear",
        "Llama",
        "llama",
        _sizes(2, **_rope("linear", factor=3.0)),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    ),
    Case("llama3", "Llama", "llama", _sizes(2, **_rope("llama3", **_LLAMA3))),
    Case("llama-yarn", "Llama", "llama", _sizes(2, **_rope("yarn", **_YARN)), _YARN_FACTS),
    Case("mistral", "Mistral", "llama", _sizes(2, sliding_window=12, head_dim=24), {"attention.sliding_window": 12}),
    Case("mistral-whole", "Mistral", "llama", _sizes(1, sliding_window=None)),
    Case("smollm3", "SmolLM3", "smollm3", _sizes(5, tie_word_embeddings=True)),
    Case(
        "smollm3-window",
        "SmolLM3",
        "",
        _sizes(4, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=11, tie_word_embeddings=False),
    ),
    Case("qwen2", "Qwen2", "qwen2", _sizes(2, 48, 4, 2, tie_word_embeddings=True)),
    Case("qwen2-yarn", "Qwen2", "qwen2", _sizes(2, **_rope("yarn", **_YARN)), _YARN_FACTS),
    Case("qwen2-window", "Qwen2", "", _sizes(3, use_sliding_window=True, sliding_window=10, max_window_layers=1)),
    Case("qwen3", "Qwen3", "qwen3", _sizes(head_dim=32)),
    Case("qwen3-tied", "Qwen3", "qwen3", _sizes(2, 56, 7, 1, head_dim=16, tie_word_embeddings=True)),
    Case(
        "qwen3-moe",
        "Qwen3Moe",
        "qwen3moe",
        _sizes(2, head_dim=24, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True),
    ),
    Case(
        "qwen3-moe-mixed",
        "Qwen3Moe",
        "",
        _sizes(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24, mlp_only_layers=[1], head_dim=16),
    ),
    Case(
        "gemma3",
        "Gemma3",
        "gemma3",
        _sizes(
            7,
            **_GEMMA,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        {**_GEMMA_FACTS, "rope.freq_base": 1000000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    Case(
        "gemma3-capped",
        "Gemma3",
        "gemma3",
        _sizes(2, **_GEMMA, layer_types=["full_attention", "sliding_attention"]) | {"final_logit_softcapping": 3.0},
        {
            **_GEMMA_FACTS,
            "attention.sliding_window_pattern": [False, True],
            "rope.freq_base": 1000000.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    Case(
        "gemma2",
        "Gemma2",
        "gemma2",
        _sizes(4, **_GEMMA, attn_logit_softcapping=1.5, final_logit_softcapping=4.0),
        {**_GEMMA_FACTS, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    ),
    Case("gemma2-usual-caps", "Gemma2", "gemma2", _sizes(1, **_GEMMA), _GEMMA_FACTS),
]


def make_model(case: Case, seed: int = 0) -> Any:
    """A `transformers` model in float32 with weights large enough that every part of it shows in its logits."""
    import torch
    import transformers

    suffix = "TextConfig" if case.hf == "Gemma3" else "Config"
    config = getattr(transformers, case.hf + suffix)(**case.config)
    model = getattr(transformers, f"{case.hf}ForCausalLM")._from_config(config, attn_implementation="eager", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(0.2 * noise + (0 if "Gemma" in case.hf else 1))
            elif "embed" in name:
                weight.copy_(0.3 * noise)
            else:
                weight.copy_(noise / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.2 * noise)
    return model.eval()


def write_folder(model: Any, folder: Path) -> Path:
    """The Hugging Face folder."""
    model.save_pretrained(folder)
    return folder


def write_gguf(case: Case, model: Any, path: Path) -> Path:
    """The same weights as converters write them."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(str(path), case.gguf)
    facts = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "context_length": config.max_position_embeddings,
        **_moe_facts(config),
        **({"rope.freq_base": config.rope_parameters["rope_theta"]} if "rope_theta" in config.rope_parameters else {}),
        **case.facts,
    }
    for key, value in facts.items():
        _add(writer, f"{case.gguf}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    state = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    if getattr(config, "tie_word_embeddings", False):
        state.pop("lm_head.weight", None)
    for name, values in _converted(case, state, config.num_attention_heads, config.num_key_value_heads).items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    if config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(head_dim, config.rope_parameters))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _moe_facts(config: Any) -> dict[str, Any]:
    if not hasattr(config, "moe_intermediate_size"):
        return {}
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds: dict[type, Callable[[str, Any], None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    kinds[type(value)](key, value)


_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _converted(case: Case, state: dict[str, Float32], heads: int, kv_heads: int) -> dict[str, Float32]:
    result: dict[str, Float32] = {}
    gemma = case.gguf.startswith("gemma")
    for name, values in state.items():
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = np.split(values, 2, axis=1)
            result[f"blk.{layer}.ffn_gate_exps.weight"], result[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
            continue
        if name.endswith("experts.down_proj"):
            result[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = values
            continue
        stem, kind = name.rsplit(".", 1)
        if gemma and stem.endswith("norm"):
            values = values + 1
        if stem in _OTHERS:
            result[f"{_OTHERS[stem]}.{kind}"] = values
            continue
        layer, role = stem.removeprefix("model.layers.").split(".", 1)
        target = "post_attention_norm" if gemma and role == "post_attention_layernorm" else _NAMES[role]
        if case.gguf in ("llama", "smollm3") and role in ("self_attn.q_proj", "self_attn.k_proj"):
            values = _neighbouring_pairs(values, heads if "q_proj" in role else kv_heads)
        result[f"blk.{layer}.{target}.{kind}"] = values
    return result


def _neighbouring_pairs(values: Float32, heads: int) -> Float32:
    """Rows of each head from halves (i, i + D / 2) to neighbours (2 i, 2 i + 1)."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _llama3_factors(head_dim: int, scaling: dict[str, Any]) -> Float32:
    """What each frequency is divided by: 1 for short waves, `factor` for long ones."""
    waves = 2 * np.pi * scaling["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    trained, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (trained / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    factors = np.where(waves < trained / high, 1.0, np.where(waves > trained / low, scaling["factor"], between))
    return factors.astype(np.float32)
