"""/tokenize and /detokenize, as vLLM's and llama.cpp's clients ask and read: bodies to requests, ids to documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from helexa.errors import RequestError
from helexa.web.request import ChatPrompt, Prompt, TextPrompt
from helexa.web.wire import fields, tables
from helexa.web.wire.chat_messages import parse_messages
from helexa.web.wire.reply import Document, Vocabulary
from helexa.web.wire.tools import chat_tools


@dataclass(frozen=True)
class TokenizeRequest:
    """`model` None: the only one."""

    model: str | None
    prompt: Prompt
    token_strs: bool
    pieces: bool


def parse_tokenize(body: Mapping[str, Any]) -> TokenizeRequest:
    values = fields.parse(body, tables.TOKENIZE)
    given = [name for name in ("prompt", "content", "messages") if name in values]
    if len(given) != 1:
        raise RequestError("invalid_value", "give one of `prompt`, `content`, `messages`", given[1] if given else "prompt")
    return TokenizeRequest(
        values.get("model"), _prompt(values, given[0]), values.get("return_token_strs", False), values.get("with_pieces", False)
    )


def _prompt(values: Mapping[str, Any], name: str) -> Prompt:
    if name == "messages":
        messages = parse_messages(values["messages"])
        return ChatPrompt(messages, chat_tools(values), values.get("chat_template_kwargs", {}))
    bos = values.get("add_special_tokens", values.get("add_special", name == "prompt"))
    return TextPrompt(values[name], special=values.get("parse_special", True), bos=bos)


def tokenized(request: TokenizeRequest, ids: Sequence[int], context: int, vocabulary: Vocabulary) -> Document:
    tokens: list[Any] = [{"id": id, "piece": _piece(vocabulary, id)} for id in ids] if request.pieces else list(ids)
    document: Document = {"tokens": tokens, "count": len(ids), "max_model_len": context}
    return {**document, "token_strs": [vocabulary.token_text(id) for id in ids]} if request.token_strs else document


def _piece(vocabulary: Vocabulary, id: int) -> str | list[int]:
    """A token's text, or its bytes where they are no whole characters."""
    data = vocabulary.token_bytes(id)
    try:
        return data.decode() if data else vocabulary.token_text(id)
    except UnicodeDecodeError:
        return list(data)


def parse_detokenize(body: Mapping[str, Any]) -> tuple[str | None, list[int]]:
    values = fields.parse(body, tables.DETOKENIZE)
    return values.get("model"), values["tokens"]


def detokenized(text: str) -> Document:
    return {"prompt": text, "content": text}


class TokenizerFacts(Protocol):
    """What is told of a tokenizer."""

    @property
    def vocab(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    def token_text(self, id: int) -> str: ...


def tokenizer_info(tokenizer: TokenizerFacts, chat_template: str | None, context: int) -> Document:
    """Special tokens by their texts."""
    bos, eos = (None if id is None else tokenizer.token_text(id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    return {
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": None,
        "vocab_size": tokenizer.vocab,
        "model_max_length": context,
        "chat_template": chat_template,
    }
