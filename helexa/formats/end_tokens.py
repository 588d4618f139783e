"""Which tokens end an answer: by a GGUF's metadata, or by what a Hugging Face checkpoint says. Pure but for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helexa.formats.checkpoint import Checkpoint

END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

# Chat formats end a turn with one of the first; a file may name only the end of a document as its eos. The last ends a document:
# a chat model draws it now and then, and what comes after it belongs to no reply. Only control tokens count: the same
# spelling as ordinary text may be quoted in a reply.
END_SPELLINGS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>")

GENERATION_CONFIG = "generation_config.json"
MAX_CONFIG_BYTES = 1024 * 1024

_CONTROL = 3  # tokenizer.ggml.token_type of a token that is never text


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end an answer, rising: those the metadata names, and control tokens spelled as an end of turn or document."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        tokens = []
    ids = {metadata[key] for key in END_KEYS if isinstance(metadata.get(key), int)}
    kinds = metadata.get("tokenizer.ggml.token_type")
    if kinds is not None:
        wanted = set(END_SPELLINGS)
        ids |= {
            index
            for index, token in enumerate(tokens)
            if token in wanted and index < len(kinds) and int(kinds[index]) == _CONTROL
        }
    return sorted(index for index in ids if 0 <= index < len(tokens))


def checkpoint_end_ids(checkpoint: Checkpoint) -> list[int]:
    """The ids that end an answer, rising. A Hugging Face checkpoint names them in generation_config.json, else in config.json."""
    if checkpoint.format == "gguf":
        return end_token_ids(checkpoint.metadata)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    named = _generation_config(folder).get("eos_token_id", checkpoint.metadata.get("eos_token_id"))
    ids = named if isinstance(named, list) else [named]
    return sorted({index for index in ids if type(index) is int and 0 <= index < 2**31})


def _generation_config(folder: Path) -> Mapping[str, Any]:
    """Empty where there is none, or it is no JSON object: the model's own config then counts."""
    try:
        with open(folder / GENERATION_CONFIG, "rb") as file:
            config = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
