"""Where chat templates and recommended sampling are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vocabularies import byte_level_tokenizer, write_tokenizer

from helexa.errors import ModelFileError
from helexa.formats.hf_vocabulary import read_tokenizer_files
from helexa.text import generation_defaults
from helexa.text.generation_defaults import GenerationDefaults
from helexa.text.template_files import folder_templates, gguf_templates

CONFIG = {"bos_token": "<|begin|>"}


def folder(path: Path, **config: Any) -> Path:
    return write_tokenizer(path, byte_level_tokenizer(), tokenizer_config=CONFIG | config)


def templates(path: Path) -> dict[str, str]:
    return folder_templates(read_tokenizer_files(path))


def test_of_a_gguf() -> None:
    """One, or one and others by name; what is no text is none."""
    assert gguf_templates({}) == {} and gguf_templates({"tokenizer.chat_template": 5}) == {}
    metadata = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b", "tokenizer.chat_templates": ["tool_use"]}
    assert gguf_templates(metadata) == {"default": "a", "tool_use": "b"}


def test_of_a_folder(tmp_path: Path) -> None:
    """tokenizer_config.json has a text or a list of named ones; files beside it count before that."""
    assert templates(folder(tmp_path)) == {}
    assert templates(folder(tmp_path, chat_template="a")) == {"default": "a"}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert templates(folder(tmp_path, chat_template=named)) == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").write_text("c", encoding="utf-8")
    assert templates(tmp_path) == {"default": "c"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("d", encoding="utf-8")
    assert templates(tmp_path) == {"default": "c", "tool_use": "d"}


@pytest.mark.parametrize("template", [5, {"a": "b"}, ["a"], [{"name": "a"}], [{"name": 1, "template": "b"}]])
def test_damaged(template: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: chat_template is neither a text nor a list"):
        templates(folder(tmp_path, chat_template=template))


def test_recommended_sampling() -> None:
    """Of generation_config.json or of a GGUF; what is not said is not made up."""
    config = {"temperature": 1, "top_k": 64, "top_p": 0.95, "repetition_penalty": 1.1, "do_sample": True, "eos_token_id": [1]}
    assert generation_defaults.from_generation_config(config, "f") == GenerationDefaults(1.0, 64, 0.95, None, 1.1)
    assert generation_defaults.from_generation_config({}, "f") == GenerationDefaults()
    metadata = {"general.sampling.temp": 0.6, "general.sampling.min_p": 0.0, "general.name": "x"}
    assert generation_defaults.from_gguf(metadata, "f") == GenerationDefaults(temperature=0.6, min_p=0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", "1"),
        ("min_p", True),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10**400),
    ],
)
def test_no_such_setting(name: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"^f: {name} is .*, which is no such setting; correct or remove it$"):
        generation_defaults.from_generation_config({name: value}, "f")
