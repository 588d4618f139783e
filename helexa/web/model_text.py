"""What the web tier needs of a model: its tokenizer, chat formats and recommended sampling, read once, off the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

from helexa.errors import HelexaError, ModelFileError, RequestError
from helexa.formats.checkpoint import model_path, open_checkpoint
from helexa.formats.hf_vocabulary import GENERATION_CONFIG, read_tokenizer_files
from helexa.text import generation_defaults, template_files
from helexa.text.chat_format import ChatFormat, Template
from helexa.text.chat_template import ChatTemplate
from helexa.text.generation_defaults import GenerationDefaults
from helexa.text.template_files import DEFAULT, TOOL_USE
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

    @property
    def add_eos(self) -> bool: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def token_bytes(self, id: int) -> bytes: ...

    def token_text(self, id: int) -> str: ...

    def control_id(self, text: str) -> int | None: ...


class ModelText:
    """`chat` is None where `no_chat` says why; `tool_chat` is for requests with tools, where the model has one of its own.
    `defaults` are its recommended sampling. Used from several threads; nothing in it changes."""

    def __init__(
        self,
        tokenizer: TextCodec,
        template: Template | None,
        no_chat: str = "the model file has none",
        tool_template: Template | None = None,
        defaults: GenerationDefaults | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat = None if template is None else ChatFormat(template)
        self.tool_chat = None if tool_template is None else ChatFormat(tool_template)
        self.defaults = defaults or GenerationDefaults()
        self._no_chat = no_chat
        self.longest_token = max(1, max(len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab)))

    def chat_format(self, tools: bool = False) -> ChatFormat:
        """`tools`: of a request that has them."""
        chat = self.tool_chat if tools and self.tool_chat is not None else self.chat
        if chat is None:
            raise RequestError(
                "template_error", f"there is no chat template to use: {self._no_chat}; use /v1/completions", "messages"
            )
        return chat

    def encode(self, text: str, context: int, bos: bool, special: bool = True) -> list[int]:
        """Ids of `text`; `bos`: between the tokens that the model's prompts start and end with, if it has any. What cannot fit,
        whatever its tokens, is refused unread."""
        size = len(text.encode())
        if size > context * self.longest_token:
            raise RequestError(
                "context_length_exceeded",
                f"the prompt has {size} bytes of text, more than the model's context of {context} tokens can hold; shorten it",
            )
        ids = self.tokenizer.encode(text, special)
        first, last = self.tokenizer.bos_id, self.tokenizer.eos_id
        if bos and self.tokenizer.add_bos and first is not None and ids[:1] != [first]:
            ids = [first, *ids]
        if bos and self.tokenizer.add_eos and last is not None and ids[-1:] != [last]:
            ids = [*ids, last]
        return ids


Loader = Callable[[Path], ModelText]


def read_model_text(path: Path) -> ModelText:
    """Of a GGUF file, a .safetensors file or a folder of them. Raises ModelFileError. A template that cannot be compiled only costs
    the chat routes."""
    with closing(open_checkpoint(path)) as checkpoint:
        metadata, is_gguf = checkpoint.metadata, checkpoint.format == "gguf"
    if is_gguf:
        templates = template_files.gguf_templates(metadata)
        defaults = generation_defaults.from_gguf(metadata, str(path))
        return _model_text(Tokenizer.from_gguf(metadata, str(path)), templates, str(path), defaults)
    folder = path if path.is_dir() else path.parent
    files = read_tokenizer_files(folder)
    defaults = generation_defaults.from_generation_config(files.generation, str(folder / GENERATION_CONFIG))
    templates = template_files.folder_templates(files)
    return _model_text(Tokenizer.from_files(files), templates, template_files.template_file(folder), defaults)


def _model_text(tokenizer: Tokenizer, sources: Mapping[str, str], file: str, defaults: GenerationDefaults) -> ModelText:
    bos, eos = ("" if id is None else tokenizer.token_text(id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    source = sources.get(DEFAULT) or next(iter(sources.values()), None)
    try:
        template = None if source is None else ChatTemplate(source, bos, eos, file)
        tool_template = ChatTemplate(sources[TOOL_USE], bos, eos, file) if TOOL_USE in sources else None
    except ModelFileError as error:
        log.warning("%s", error)
        return ModelText(tokenizer, None, error.message, defaults=defaults)
    return ModelText(tokenizer, template, tool_template=tool_template, defaults=defaults)


class ModelTexts:
    """One ModelText a file, by path and modification time; requests that come while it loads wait for the same load."""

    def __init__(self, loader: Loader = read_model_text) -> None:
        self._loader = loader
        self._loads: dict[Path, tuple[int, asyncio.Task[ModelText]]] = {}

    async def of(self, info: ModelInfo) -> ModelText:
        path = Path()
        try:
            path = model_path(info.files)
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
