"""Which tokens end an answer, by a GGUF's metadata. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

# Chat formats end a turn with one of the first; a file may name only the end of a document as its eos. The last ends a document:
# a chat model draws it now and then, and what comes after it belongs to no reply. Only control tokens count: the same
# spelling as ordinary text may be quoted in a reply.
END_SPELLINGS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>")

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
