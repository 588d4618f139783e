"""A folder of safetensors, served: its tokenizer, chat template, recommended sampling, and grammars over its vocabulary."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from service import serving
from tiny_folder import write_tiny_folder

pytestmark = pytest.mark.process


def post(url: str, route: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(url + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_a_folder_is_served(tmp_path):
    """Completions, chat, tokens and structured output come out of it; a request that says nothing gets the model's own sampling."""
    folder = write_tiny_folder(tmp_path / "Tiny-0.1B", temperature=0.0, top_k=1)
    with serving(tmp_path, str(folder)) as service:
        with urllib.request.urlopen(f"{service.url}/v1/models", timeout=60) as answer:
            assert json.loads(answer.read())["data"][0]["id"] == "Tiny-0.1B"
        tokens = post(service.url, "/tokenize", prompt="he said")
        assert tokens["tokens"][0] == 260 and len(tokens["tokens"]) > 3
        assert post(service.url, "/detokenize", tokens=tokens["tokens"])["prompt"] == "he said"
        silent = [post(service.url, "/v1/completions", model="Tiny-0.1B", prompt="he", max_tokens=12) for _ in range(2)]
        assert silent[0]["choices"] == silent[1]["choices"], "temperature 0 is the model's recommendation"
        assert silent[0]["usage"]["prompt_tokens"] == 2, "bos, and the one token of the text"
        hi = [{"role": "user", "content": "hi"}]
        chat = post(service.url, "/v1/chat/completions", model="Tiny-0.1B", messages=hi, max_tokens=5)
        assert chat["usage"]["completion_tokens"] <= 5 and chat["choices"][0]["finish_reason"] in ("length", "stop")
        held = post(service.url, "/v1/completions", model="Tiny-0.1B", prompt="x", max_tokens=8, guided_regex="(ab|cd){2}")
        assert held["choices"][0]["text"] in ("abab", "abcd", "cdab", "cdcd")
