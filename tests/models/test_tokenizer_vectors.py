"""Tokenizers against the vectors that come with an outside implementation's sources: vocabularies, texts and their ids."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from outside_sources import outside_data

from helexa.formats.gguf import GGUFFile
from helexa.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

FAMILIES = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_vectors(family: str) -> None:
    """Every text of the family's has the very ids, and decodes to itself. qwen35's decomposed texts are left out: the model's own
    tokenizer composes them, the vectors do not."""
    path = outside_data() / f"ggml-vocab-{family}.gguf"
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata, str(path))
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wanted = [[int(id) for id in line.split()] for line in Path(f"{path}.out").read_text().split("\n")]
    compared = 0
    for text, ids in zip(texts, wanted, strict=False):
        if family == "qwen35" and not unicodedata.is_normalized("NFC", text):
            continue
        assert tokenizer.encode(text, special=False) == ids, text
        assert tokenizer.decode(ids) == text
        compared += 1
    assert compared >= 45


def test_ids_of_smollm(default_model_path: Path) -> None:
    """The outside implementation's sources have no vectors of this kind. These are texts of our own, with the ids that it gave them
    with the default model's vocabulary: `llama-server` of llama-cpp-python 0.3.36, `/tokenize` without special tokens."""
    with GGUFFile.open(default_model_path) as file:
        assert file.metadata["tokenizer.ggml.pre"] == "smollm"
        tokenizer = Tokenizer.from_gguf(file.metadata, str(default_model_path))
    vectors = json.loads((Path(__file__).parents[1] / "golden" / "smollm_ids.json").read_text())
    assert len(vectors) == 57
    for text, ids in vectors:
        assert tokenizer.encode(text, special=False) == ids, text
        assert tokenizer.decode(ids) == text
