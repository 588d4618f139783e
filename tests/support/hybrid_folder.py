"""A tiny random hybrid model that can be served: a Hugging Face folder with weights, a tokenizer, and a head for several tokens."""

from __future__ import annotations

from pathlib import Path

from hybrid_checkpoints import Case, make, write_folder
from vocabularies import byte_level_tokenizer, write_tokenizer


def write_hybrid_folder(folder: Path) -> Path:
    """Needs torch and transformers."""
    tokenizer = byte_level_tokenizer()
    sizes = {"num_experts": 0, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 1024}
    case = Case("served", "Qwen3Next", "qwen3next", {**sizes, "eos_token_id": tokenizer.token_to_id("<|end|>")})
    write_folder(case, make(case), folder)
    return write_tokenizer(folder, tokenizer, tokenizer_config={"bos_token": "<|begin|>", "eos_token": "<|end|>"})
