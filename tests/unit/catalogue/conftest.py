"""Tiny models, and the places they are fetched from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from helexa import config as configuration
from helexa.config import Config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configuration.load(None, {"paths.cache": str(tmp_path / "cache")}, {"TMPDIR": str(tmp_path)})


@pytest.fixture
def offline(config: Config) -> Config:
    return dataclasses.replace(config, offline=True)


@pytest.fixture
def write_gguf() -> Callable[..., Path]:
    """Writes a valid GGUF file of a few hundred bytes."""

    def write(path: Path, licence: str | None = "mit", columns: int = 64) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name("Tiny")
        writer.add_block_count(1)
        writer.add_context_length(128)
        if licence is not None:
            writer.add_license(licence)
        writer.add_tensor("output_norm.weight", np.arange(columns, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
