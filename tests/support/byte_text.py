"""A tokenizer for tests: a token a byte, and a few control tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helexa.errors import RequestError
from helexa.web.model_text import ModelText

EOS = 256
CONTROL = {256: "<|eos|>", 257: "<|user|>", 258: "<|assistant|>", 259: "<|pad|>"}


class ByteTokenizer:
    vocab = 260
    bos_id: int | None = None
    eos_id: int | None = EOS
    add_bos = False
    add_eos = False

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b""

    def token_text(self, id: int) -> str:
        return CONTROL.get(id) or self.token_bytes(id).decode("utf-8", "replace")

    def control_id(self, text: str) -> int | None:
        return next((id for id, name in CONTROL.items() if name == text), None)


class PlainTemplate:
    source = ""
    variables = frozenset({"messages"})

    def render(self, messages: list[dict[str, Any]], /, add_generation_prompt: bool = True, **extra: Any) -> str:
        if messages[0]["role"] == "assistant":
            raise RequestError("template_error", "the template wants a user to begin", "messages")
        return "".join(f"{message['content']}" for message in messages)


def load_byte_text(path: Path) -> ModelText:
    return ModelText(ByteTokenizer(), PlainTemplate())
