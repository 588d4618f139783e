"""Token ids to bytes, by a GGUF's metadata of a byte-level BPE vocabulary. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type; others are never text


def token_kinds(metadata: Mapping[str, Any], count: int) -> list[int]:
    """The type of each of `count` tokens; where the file does not say, all are normal. A damaged file has too few or many."""
    value = metadata.get("tokenizer.ggml.token_type")
    return [NORMAL] * count if value is None else [int(kind) for kind in value]


def control_ids(kinds: Sequence[int]) -> list[int]:
    """The tokens that are never text."""
    return [id for id, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)]


def token_bytes(tokens: Sequence[str], kinds: Sequence[int]) -> list[bytes]:
    """Each token's bytes of text. A user-defined token is spelled as it is; so is one with a letter that stands for no byte."""
    byte_of = _byte_of_letter()

    def one(token: str, kind: int) -> bytes:
        if kind == NORMAL:
            try:
                return bytes([byte_of[letter] for letter in token])
            except KeyError:
                return token.encode()
        return token.encode() if kind == USER_DEFINED else b""

    return [one(token, kind) for token, kind in zip(tokens, kinds, strict=True)]


def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE spells each byte as one printable letter: itself where it is one in Latin-1, else one from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(shifted)}
