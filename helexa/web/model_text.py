"""What the web tier needs of a model: its tokenizer and chat format, read from the model file once, off the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from helexa.errors import HelexaError, ModelFileError, RequestError
from helexa.formats.gguf import GGUFFile
from helexa.text.chat_format import ChatFormat, Template
from helexa.text.chat_template import ChatTemplate
from helexa.text.tokenizer import Tokenizer
from ipc.messages import ModelInfo

log = logging.getLogger("helexa.web.text")


class TextCodec(Protocol):
    """What is used of helexa.text.tokenizer.Tokenizer."""

    @property
    def vocab(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    @property
    def add_bos(self) -> bool: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def token_bytes(self, id: int) -> bytes: ...

    def token_text(self, id: int) -> str: ...

    def control_id(self, text: str) -> int | None: ...


class ModelText:
    """`chat` is None where `no_chat` says why. Used from several threads; nothing in it changes."""

    def __init__(self, tokenizer: TextCodec, template: Template | None, no_chat: str = "the model file has none") -> None:
        self.tokenizer = tokenizer
        self.chat = None if template is None else ChatFormat(template)
        self._no_chat = no_chat
        self.longest_token = max(1, max(len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab)))

    def chat_format(self) -> ChatFormat:
        if self.chat is None:
            raise RequestError(
                "template_error", f"there is no chat template to use: {self._no_chat}; use /v1/completions", "messages"
            )
        return self.chat

    def encode(self, text: str, context: int, bos: bool, special: bool = True) -> list[int]:
        """Ids of `text`; `bos`: after the model's own, if it has one. What cannot fit, whatever its tokens, is refused unread."""
        size = len(text.encode())
        if size > context * self.longest_token:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {size} bytes of text, more than the model's context of {context} tokens can hold; shorten it",
            )
        ids = self.tokenizer.encode(text, special)
        if bos and self.tokenizer.add_bos and self.tokenizer.bos_id is not None and ids[:1] != [self.tokenizer.bos_id]:
            return [self.tokenizer.bos_id, *ids]
        return ids


Loader = Callable[[Path], ModelText]


def load_gguf(path: Path) -> ModelText:
    """Raises ModelFileError. A template that cannot be compiled only costs the chat routes."""
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata, str(path))
        source = file.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return ModelText(tokenizer, None)
    bos, eos = ("" if id is None else tokenizer.token_text(id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    try:
        return ModelText(tokenizer, ChatTemplate(source, bos, eos, str(path)))
    except ModelFileError as error:
        log.warning("%s", error)
        return ModelText(tokenizer, None, error.message)


class ModelTexts:
    """One ModelText a file, by path and modification time; requests that come while it loads wait for the same load."""

    def __init__(self, loader: Loader = load_gguf) -> None:
        self._loader = loader
        self._loads: dict[Path, tuple[int, asyncio.Task[ModelText]]] = {}

    async def of(self, info: ModelInfo) -> ModelText:
        file = info.files.get("gguf")
        if file is None:
            raise RequestError(
                "model_failed",
                f"model `{info.name}` has no tokenizer file; its files: {', '.join(info.files) or 'none'}",
                "model",
            )
        path = Path(file)
        try:
            changed = path.stat().st_mtime_ns
            known = self._loads.get(path)
            if known is None or known[0] != changed:
                known = changed, asyncio.create_task(asyncio.to_thread(self._loader, path))
                self._loads[path] = known
            return await asyncio.shield(known[1])
        except (HelexaError, OSError) as error:
            self._loads.pop(path, None)
            log.error("the tokenizer of model %s cannot be read: %s", info.name, error)
            raise RequestError("model_failed", f"the tokenizer of model `{info.name}` cannot be read: {error}", "model") from None
