"""Tiny models, and the places they are fetched from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from vocabularies import byte_level_tokenizer, write_tokenizer

from helexa import config as configuration
from helexa.config import Config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configuration.load(None, {"paths.cache": str(tmp_path / "cache")}, {"TMPDIR": str(tmp_path)})


@pytest.fixture
def offline(config: Config) -> Config:
    return dataclasses.replace(config, offline=True)


@pytest.fixture
def write_folder() -> Callable[..., Path]:
    """Writes a folder of safetensors with a few tensors, whole enough for what looks at its headers; returns it."""

    def write(folder: Path, shards: int = 1, **config: Any) -> Path:
        shape = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes = {"hidden_size": 64, "vocab_size": 259, "max_position_embeddings": 128}
        write_tokenizer(folder, byte_level_tokenizer(), config=shape | sizes | config, tokenizer_config={"add_bos_token": False})
        names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
        names = ["model.safetensors"] if shards == 1 else names
        for number, name in enumerate(names):
            save_file({f"model.layers.{number}.x.weight": np.ones((8, 8), np.float32)}, folder / name)
        if shards > 1:
            weights = {f"model.layers.{number}.x.weight": name for number, name in enumerate(names)}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}), encoding="utf-8")
        return folder

    return write


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
