"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from golden_plugin import golden, pytest_addoption
from hypothesis import settings

__all__ = ["golden", "pytest_addoption"]

settings.register_profile("helexa", deadline=None)  # no test depends on how busy the machine is
settings.load_profile("helexa")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
for _name in ("HELEXA_CONFIG", "HELEXA_FLAGS"):
    os.environ.pop(_name, None)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's GGUF, from the user's cache; fetched there the first time."""
    from helexa import catalogue
    from helexa import config as configuration

    config = configuration.load(None, {})
    source = catalogue.parse("smollm2", config)
    files = catalogue.find(source, config) or catalogue.fetch(source, config, print)
    return Path(files.files["gguf"])


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a byte tokenizer."""
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
