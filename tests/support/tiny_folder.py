"""A tiny random llama as a Hugging Face folder, with a byte-level tokenizer.json and a chat template: no download, no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from vocabularies import byte_level_tokenizer, write_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def write_tiny_folder(folder: Path, *, layers: int = 2, seed: int = 0, **generation: Any) -> Path:
    """`generation` is generation_config.json."""
    random = np.random.default_rng(seed)
    made = byte_level_tokenizer()
    vocab, width, hidden, kv = made.get_vocab_size(), 64, 96, 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": width,
        "intermediate_size": hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": made.token_to_id("<|begin|>"),
        "eos_token_id": made.token_to_id("<|end|>"),
    }
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    write_tokenizer(folder, made, config=config, tokenizer_config=names, generation_config=generation)

    def linear(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray[Any, np.dtype[np.float32]]:
        return (1 + 0.1 * random.standard_normal(width)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": linear(vocab, width), "model.norm.weight": norm()}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes = {"q_proj": (width, width), "k_proj": (kv, width), "v_proj": (kv, width), "o_proj": (width, width)}
        tensors |= {f"{prefix}self_attn.{name}.weight": linear(*shape) for name, shape in shapes.items()}
        shapes = {"gate_proj": (hidden, width), "up_proj": (hidden, width), "down_proj": (width, hidden)}
        tensors |= {f"{prefix}mlp.{name}.weight": linear(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}{name}.weight": norm() for name in ("input_layernorm", "post_attention_layernorm")}
    save_file(tensors, folder / "model.safetensors")
    return folder
