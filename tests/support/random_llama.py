"""A llama of random weights and any size as a Hugging Face folder, written with NumPy alone: for what only a large model shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Shape:
    """About a billion weights by default."""

    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 64
    hidden: int = 8192
    vocab: int = 32_000
    context: int = 8192

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """A layer's, (outputs, inputs)."""
        kv = self.kv_heads * self.head_dim
        return {
            "self_attn.q_proj": (self.width, self.width),
            "self_attn.k_proj": (kv, self.width),
            "self_attn.v_proj": (kv, self.width),
            "self_attn.o_proj": (self.width, self.width),
            "mlp.gate_proj": (self.hidden, self.width),
            "mlp.up_proj": (self.hidden, self.width),
            "mlp.down_proj": (self.width, self.hidden),
        }


def write_random_llama(folder: Path, shape: Shape = Shape()) -> Path:
    """Layers have the same linears in another order of rows, so that writing takes little longer than the disk does."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    names = {"model.embed_tokens.weight": (shape.vocab, shape.width), "model.norm.weight": (shape.width,)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        names |= {f"{prefix}{name}.weight": size for name, size in shape.linears().items()}
        names |= {f"{prefix}{name}.weight": (shape.width,) for name in ("input_layernorm", "post_attention_layernorm")}
    header, at = {}, 0
    for name, size in names.items():
        end = at + 2 * int(np.prod(size))
        header[name] = {"dtype": "F16", "shape": list(size), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random, made = np.random.default_rng(0), {}
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for index, size in enumerate(names.values()):
            if len(size) == 1:
                file.write((1 + 0.1 * random.standard_normal(size, np.float32)).astype(np.float16).tobytes())
                continue
            if size not in made:
                made[size] = (random.standard_normal(size, np.float32) / size[1] ** 0.5).astype(np.float16)
            file.write(np.roll(made[size], index, axis=0).tobytes())
    return folder
