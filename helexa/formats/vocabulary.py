"""A model's vocabulary: what its tokens are, which of them are text, and which begin and end a prompt or a reply. Pure.

It is read from a GGUF's metadata here, and from a Hugging Face folder's files in helexa.formats.hf_vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from helexa.errors import ModelFileError
from helexa.formats.end_tokens import end_token_ids
from helexa.formats.token_bytes import control_ids, letter_token_bytes, space_token_bytes, token_kinds

Spelling = Literal["letters", "spaces"]

MODELS: dict[str, Spelling] = {"gpt2": "letters", "llama": "spaces"}  # tokenizer.ggml.model
BOS_FIRST_PRE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2")  # prompts start with bos where a file is silent


@dataclass(frozen=True)
class Vocabulary:
    """`tokens` are as the file spells them, `kinds` their types (helexa.formats.token_bytes), one each.

    `spelling`: `letters` is byte-level BPE, where a letter stands for each byte; `spaces` is SentencePiece, where U+2581 stands
    for a blank. `bos_id` and `eos_id` are those the file names; `end_ids` are all that end a reply. `add_bos`, `add_eos`: a prompt
    starts with the one, ends with the other. `space_prefix`: a text gets a blank before it that is not its own.
    """

    tokens: list[str]
    kinds: list[int]
    spelling: Spelling
    bos_id: int | None
    eos_id: int | None
    end_ids: list[int]
    add_bos: bool
    add_eos: bool
    space_prefix: bool

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that are never text."""
        return frozenset(control_ids(self.kinds))

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Each token's bytes of text; b"" for those that are none."""
        read = letter_token_bytes if self.spelling == "letters" else space_token_bytes
        return read(self.tokens, self.kinds)


def from_gguf(metadata: Mapping[str, Any], file: str) -> Vocabulary:
    """`metadata` as GGUFFile reads it. ModelFileError where it is damaged or of a kind that is not served; names `file`."""
    kind = metadata.get("tokenizer.ggml.model")
    spelling = MODELS.get(kind) if isinstance(kind, str) else None
    if spelling is None:
        raise ModelFileError(
            f"{file}: tokenizer.ggml.model is {kind!r:.40}, which is not served; "
            "served: gpt2 (byte-level BPE), llama (SentencePiece)"
        )
    tokens = texts(metadata, "tokenizer.ggml.tokens", file)
    kinds = token_kinds(metadata, len(tokens))
    if len(kinds) != len(tokens):
        raise ModelFileError(
            f"{file}: tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} tokens; the file is damaged"
        )
    pieces = spelling == "spaces"
    vocabulary = Vocabulary(
        tokens=tokens,
        kinds=kinds,
        spelling=spelling,
        bos_id=_id(metadata, "bos", len(tokens), file),
        eos_id=_id(metadata, "eos", len(tokens), file),
        end_ids=end_token_ids(metadata),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", pieces or metadata.get("tokenizer.ggml.pre") in BOS_FIRST_PRE)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        space_prefix=pieces and bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
    )
    for name, added, id in (("bos", vocabulary.add_bos, vocabulary.bos_id), ("eos", vocabulary.add_eos, vocabulary.eos_id)):
        if added and id is None:
            place = "start" if name == "bos" else "end"
            raise ModelFileError(
                f"{file}: prompts {place} with {name}, but tokenizer.ggml.{name}_token_id is missing; the file is damaged"
            )
    return vocabulary


def texts(metadata: Mapping[str, Any], key: str, file: str) -> list[str]:
    """An array of strings. ModelFileError where it is missing or anything else."""
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelFileError(f"{file}: {key} is missing or is not an array of strings; the file is damaged")
    return value


def _id(metadata: Mapping[str, Any], name: str, count: int, file: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    id = metadata.get(key)
    if id is not None and (type(id) is not int or not 0 <= id < count):
        raise ModelFileError(f"{file}: {key} is {id!r:.40}, which is not one of {count} tokens; the file is damaged")
    return id
