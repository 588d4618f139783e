"""Tokenizers against the vectors that come with an outside implementation's sources: vocabularies, texts and their ids.

The sources are fetched once, into the cache that model files are in; nothing of them is part of this project.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path

import pytest

from helexa import config as configuration
from helexa.formats.gguf import GGUFFile
from helexa.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

NAME, VERSION = "llama_cpp_python", "0.3.36"
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
NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Max retries exceeded",
)


@functools.cache
def vectors() -> Path:
    """The folder of the vectors, fetched where it is not there. Skips where there is no network, and for no other reason."""
    folder = Path(configuration.load(None, {}).paths.cache) / "test-data" / f"{NAME}-{VERSION}"
    if not (folder / "whole").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--quiet", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{NAME}=={VERSION}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = list(folder.glob("*.tar.gz"))  # pip leaves it there before it asks the sources for their metadata
        if not archives:
            if any(sign in result.stderr for sign in NO_NETWORK):
                pytest.skip("no network, and the vectors are not in the cache")
            raise AssertionError(result.stderr)
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                name = Path(member.name)
                if member.isfile() and name.parent.name == "models" and name.name.startswith("ggml-vocab-"):
                    member.name = name.name
                    archive.extract(member, folder, filter="data")
        archives[0].unlink()
        (folder / "whole").touch()
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_vectors(family: str) -> None:
    """Every text of the family's has the very ids, and decodes to itself. qwen35's decomposed texts are left out: the model's own
    tokenizer composes them, the vectors do not."""
    path = vectors() / f"ggml-vocab-{family}.gguf"
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
