"""Tokens to bytes, for both ways to spell bytes in a vocabulary. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type; unused ones are never text

BLANK = "\u2581"  # SentencePiece's spelling of a blank
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_kinds(metadata: Mapping[str, Any], count: int) -> list[int]:
    """The type of each of `count` tokens; where the file does not say, all are normal. A damaged file has too few or many."""
    value = metadata.get("tokenizer.ggml.token_type")
    return [NORMAL] * count if value is None else [int(kind) for kind in value]


def control_ids(kinds: Sequence[int]) -> list[int]:
    """The tokens that are never text."""
    return [id for id, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)]


def letter_token_bytes(tokens: Sequence[str], kinds: Sequence[int]) -> list[bytes]:
    """Bytes of byte-level BPE's tokens. A letter that stands for no byte is spelled as it is."""
    byte_of = _byte_of_letter()

    def normal(token: str) -> bytes:
        try:
            return bytes([byte_of[letter] for letter in token])
        except KeyError:
            return token.encode()

    return _each(tokens, kinds, normal, str.encode)


def space_token_bytes(tokens: Sequence[str], kinds: Sequence[int]) -> list[bytes]:
    """Bytes of SentencePiece's tokens."""

    def normal(token: str) -> bytes:
        return token.replace(BLANK, " ").encode()

    return _each(tokens, kinds, normal, normal)


def byte_of_token(token: str) -> int | None:
    """The byte that a SentencePiece token such as <0x0A> stands for."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


def _each(
    tokens: Sequence[str], kinds: Sequence[int], normal: Callable[[str], bytes], defined: Callable[[str], bytes]
) -> list[bytes]:
    """`defined` reads user-defined tokens."""

    def one(token: str, kind: int) -> bytes:
        if kind == NORMAL:
            return normal(token)
        if kind == BYTE:
            byte = byte_of_token(token)
            return b"" if byte is None else bytes([byte])
        return defined(token) if kind == USER_DEFINED else b""

    return [one(token, kind) for token, kind in zip(tokens, kinds, strict=True)]


def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE spells each byte as one printable letter: itself where it is one in Latin-1, else one from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(shifted)}
