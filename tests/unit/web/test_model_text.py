"""What the web tier reads of a model: from a GGUF, and from a folder of safetensors."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from byte_text import ByteTokenizer, PlainTemplate
from fake_scheduler import model_info
from safetensors.numpy import save_file
from vocabularies import byte_level_tokenizer, write_tokenizer

from helexa.config_tables import Sampling
from helexa.errors import RequestError
from helexa.text.generation_defaults import GenerationDefaults
from helexa.web.model_text import ModelText, ModelTexts, read_model_text
from helexa.web.prepare import prepare
from helexa.web.request import Options, Shape, TextPrompt, WireRequest

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
TOOLS = TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}"


def folder(path: Path, **others: Any) -> Path:
    others = {"tokenizer_config": {"bos_token": "<|begin|>", "chat_template": TEMPLATE}} | others
    write_tokenizer(path, byte_level_tokenizer(), config={"architectures": ["X"]}, **others)
    save_file({"x": np.zeros(4, np.float32)}, path / "model.safetensors")
    return path


def test_of_a_gguf(tiny_model_path: Path) -> None:
    text = read_model_text(tiny_model_path)
    assert text.chat_format().render([{"role": "user", "content": "hi"}], [], {}).startswith("<|im_start|>user\nhi")
    assert text.defaults == GenerationDefaults()


def test_of_a_folder(tmp_path: Path) -> None:
    """Tokenizer, template and recommended sampling come from its files; a prompt that is no chat starts with bos."""
    path = folder(tmp_path, generation_config={"temperature": 0.25, "top_k": 7, "eos_token_id": 5})
    for name in (path, path / "model.safetensors"):
        text = read_model_text(name)
        assert text.defaults == GenerationDefaults(temperature=0.25, top_k=7) and 5 in text.tokenizer.eos_ids
        assert text.chat_format().render([{"role": "user", "content": "hi"}], [], {}) == "<|begin|>hi"
        first = text.tokenizer.bos_id
        assert text.encode("hi", 100, bos=True)[0] == first and text.encode("hi", 100, bos=False)[0] != first


def test_a_template_for_tools(tmp_path: Path) -> None:
    """Requests with tools use the template of that name, others the default one."""
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": TOOLS}]
    text = read_model_text(folder(tmp_path, tokenizer_config={"bos_token": "<|begin|>", "chat_template": named}))
    assert not text.chat_format().takes_tools and text.chat_format(tools=True).takes_tools


def test_a_template_that_cannot_be_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It costs the chat routes alone, and the log names its file."""
    path = folder(tmp_path)
    (path / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        text = read_model_text(path)
    assert "chat_template.jinja: the chat template, line 1" in caplog.text
    with pytest.raises(RequestError, match="no chat template to use"):
        text.chat_format()
    assert text.encode("a", 10, bos=False)


def test_a_prompt_that_ends_with_eos() -> None:
    """Only where the model's prompts do, and once."""

    class Ending(ByteTokenizer):
        add_eos = True

        def encode(self, text: str, special: bool = True) -> list[int]:
            return [*super().encode(text), *([256] if text == "b" else [])]

    text = ModelText(Ending(), PlainTemplate())
    assert text.encode("a", 100, bos=True) == [97, 256] and text.encode("b", 100, bos=True) == [98, 256]
    assert text.encode("a", 100, bos=False) == [97]


def test_the_request_the_model_then_the_server(tmp_path: Path) -> None:
    """A field that a request gives counts, else what the model's makers recommend, else the configuration."""
    defaults = GenerationDefaults(temperature=0.25, top_k=7, top_p=0.9, repetition_penalty=1.1)
    text = ModelText(ByteTokenizer(), PlainTemplate(), defaults=defaults)

    def params(text: ModelText, **options: Any) -> Any:
        wire = WireRequest("m", [TextPrompt("a")], Options(**options), Shape())
        return prepare(wire, model_info(context=100), text, Sampling(temperature=0.6))[0].params

    silent = params(text)
    assert (silent.temperature, silent.top_k, silent.top_p, silent.min_p, silent.repetition_penalty) == (0.25, 7, 0.9, 0.0, 1.1)
    asked = params(text, temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
    assert (asked.temperature, asked.top_k, asked.top_p, asked.repetition_penalty) == (0.0, 0, 1.0, 1.0)
    plain = params(ModelText(ByteTokenizer(), PlainTemplate()))
    assert (plain.temperature, plain.top_k, plain.top_p, plain.repetition_penalty) == (0.6, 0, 1.0, 1.0)


async def of(files: dict[str, str]) -> ModelText:
    return await ModelTexts().of(msgspec.structs.replace(model_info(context=100), files=files))


def test_what_cannot_be_read_is_the_models_fault(tmp_path: Path) -> None:
    """A damaged folder fails requests to that model, with the reason; so does a model whose files are of no known role."""
    path = folder(tmp_path)
    assert asyncio.run(of({"safetensors": str(path)})).tokenizer.vocab > 256
    (path / "generation_config.json").write_text(json.dumps({"top_p": -3}), encoding="utf-8")
    with pytest.raises(RequestError, match="top_p is -3") as caught:
        asyncio.run(of({"safetensors": str(path)}))
    assert caught.value.code == "model_failed"
    with pytest.raises(RequestError, match="neither gguf nor safetensors"):
        asyncio.run(of({"onnx": "x"}))
