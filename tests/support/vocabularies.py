"""Small vocabularies for tests of tokenizers: as a GGUF's metadata, and as the files of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BLANK = "\u2581"

# best first, as SentencePiece scores them
PIECES = ["▁t", "he", "▁a", "▁the", "ll", "in", "ing", "▁▁", "aa", "aaa", "▁he", "▁hell", "▁hello", "el", "ab", "aba"]
LETTERS = ["▁", *"abcdefghilmnoprstuw", "é", "日", "🙂", ".", "-"]
DEFINED = ["\n\n", "[multimodal]", "   "]


def pieces_metadata(**changes: Any) -> dict[str, Any]:
    """SentencePiece: three control tokens, user-defined ones, all bytes, a few pieces."""
    entries = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    entries += [(token, USER_DEFINED) for token in DEFINED]
    entries += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    entries += [(token, NORMAL) for token in [*PIECES, *LETTERS]]
    first = len(entries) - len(PIECES) - len(LETTERS)
    base = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [token for token, _ in entries],
        "tokenizer.ggml.token_type": np.array([kind for _, kind in entries], np.int32),
        "tokenizer.ggml.scores": np.array([min(0.0, float(first - id)) for id in range(len(entries))], np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE with a few merges, a special and an ordinary added token, and a bos token before each text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: id for id, token in enumerate([*letters, "he", "ll", "Ġhe"])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("l", "l"), ("Ġ", "he")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<|begin|>", "<|im_end|>", "<|end|>")])
    made.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", made.token_to_id("<|begin|>"))]
    )
    return made


def pieces_tokenizer() -> Tokenizer:
    """SentencePiece as a tokenizer.json has it: byte fallback, blanks spelled U+2581, one before each text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS, "▁t", "he", "▁the"]
    model = models.BPE(
        vocab={token: id for id, token in enumerate(tokens)},
        merges=[("▁", "t"), ("h", "e"), ("▁t", "he")],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    made.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    return made


def write_tokenizer(folder: Path, made: Tokenizer | dict[str, Any], **others: Any) -> Path:
    """Writes tokenizer.json, and `others` as NAME.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(made) if isinstance(made, dict) else made.to_str()
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    for name, value in others.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder
