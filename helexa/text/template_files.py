"""Where a model keeps its chat templates. Pure but for reading.

A model may have several by name: `default`, and `tool_use` for requests with tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helexa.errors import ModelFileError
from helexa.formats.hf_vocabulary import TOKENIZER_CONFIG, TokenizerFiles
from helexa.formats.json_file import read_text

DEFAULT, TOOL_USE = "default", "tool_use"
TEMPLATE, MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"

_GGUF_KEY = "tokenizer.chat_template"


def gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The templates' sources by name; empty where there is none."""
    named = {key.removeprefix(f"{_GGUF_KEY}."): value for key, value in metadata.items() if key.startswith(f"{_GGUF_KEY}.")}
    found = {DEFAULT: metadata.get(_GGUF_KEY), **named}
    return {name: source for name, source in found.items() if isinstance(source, str)}


def folder_templates(files: TokenizerFiles) -> dict[str, str]:
    """The same of a Hugging Face folder: files beside it count before tokenizer_config.json, which has one source or a list of
    named ones. ModelFileError where that is damaged."""
    own = files.folder / TEMPLATE
    if own.exists():
        more = sorted((files.folder / MORE_TEMPLATES).glob("*.jinja"))
        return {DEFAULT: read_text(own)} | {path.stem: read_text(path) for path in more}
    stated = files.config.get("chat_template")
    if stated is None:
        return {}
    if isinstance(stated, str):
        return {DEFAULT: stated}
    named: dict[str, str] = {}
    for item in stated if isinstance(stated, list) else [stated]:
        name, source = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            path = files.folder / TOKENIZER_CONFIG
            raise ModelFileError(
                f"{path}: chat_template is neither a text nor a list of names and templates; the file is damaged"
            )
        named[name] = source
    return named


def template_file(folder: Path) -> str:
    """What errors in a folder's template name."""
    own = folder / TEMPLATE
    return str(own if own.exists() else folder / TOKENIZER_CONFIG)
