"""A tiny random llama with a byte tokenizer, written as a GGUF: engine tests need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_ID = 2


def byte_alphabet() -> list[str]:
    """GPT-2's spelling of the 256 bytes as printable characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_tiny_model(
    path: Path,
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    hidden: int = 96,
    context: int = 512,
    seed: int = 0,
    quant: str = "F32",
    scale: float = 1.0,
    pooling: int | None = None,
    alike: bool = False,
) -> Path:
    """Writes the model to `path` and returns it. `quant` is a GGML type name for the linears. `alike`: linears of one shape have the
    same weights, so that a large model is made soon."""
    random = np.random.default_rng(seed)
    tokens = [*CONTROL_TOKENS, *byte_alphabet(), "th"]
    vocab, width = len(tokens), heads * head_dim
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocab)
    if pooling is not None:
        writer.add_uint32("llama.pooling_type", pooling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL_TOKENS) + [1] * 257)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(END_ID)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    kind = gguf.GGMLQuantizationType[quant]
    made: dict[tuple[int, ...], NDArray[Any]] = {}

    def add(name: str, *shape: int) -> None:
        if alike and shape in made:
            writer.add_tensor(name, made[shape], raw_dtype=kind)
            return
        data = (random.standard_normal(shape) * scale / np.sqrt(shape[-1])).astype(np.float32)
        if name == "token_embd.weight":
            data *= 0.2 * np.sqrt(shape[-1])  # small, so that the layers decide and replies do not repeat one token
        made[shape] = gguf.quants.quantize(data, kind)
        writer.add_tensor(name, made[shape], raw_dtype=kind)

    def add_norm(name: str) -> None:
        writer.add_tensor(name, (1 + 0.1 * random.standard_normal(width)).astype(np.float32))

    add("token_embd.weight", vocab, width)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        add_norm(f"{prefix}attn_norm.weight")
        add(f"{prefix}attn_q.weight", width, width)
        add(f"{prefix}attn_k.weight", kv_heads * head_dim, width)
        add(f"{prefix}attn_v.weight", kv_heads * head_dim, width)
        add(f"{prefix}attn_output.weight", width, width)
        add_norm(f"{prefix}ffn_norm.weight")
        add(f"{prefix}ffn_gate.weight", hidden, width)
        add(f"{prefix}ffn_up.weight", hidden, width)
        add(f"{prefix}ffn_down.weight", width, hidden)
    add_norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
