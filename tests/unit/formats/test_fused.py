"""Tensors that hold queries, keys and values are taken apart where the metadata tell their rows, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused_gguf import fuse
from tiny_model import write_tiny_model

from helexa.formats.fused import taken_apart
from helexa.formats.gguf import GGUFFile
from helexa.formats.tensor_info import TensorInfo
from workers.inputs import StepInputs
from workers.models.registry import load_model
from workers.ops.reference import ReferenceOps
from workers.weights.sharding import Shard

METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}
FUSED = TensorInfo("blk.0.attn_qkv.weight", "Q8_0", (128, 64), 1000, 128 * 68, 1)
BIAS = TensorInfo("blk.0.attn_qkv.bias", "F32", (128,), 64, 512)


def apart(metadata: dict[str, Any], *infos: TensorInfo) -> dict[str, TensorInfo]:
    return taken_apart(metadata, {info.name: info for info in infos})


def test_rows_in_order() -> None:
    """Queries, then keys, then values: each says where its bytes lie."""
    parts = apart(METADATA, FUSED, BIAS)
    assert {name: (info.shape, info.offset, info.nbytes, info.file) for name, info in parts.items()} == {
        "blk.0.attn_q.weight": ((64, 64), 1000, 64 * 68, 1),
        "blk.0.attn_k.weight": ((32, 64), 1000 + 64 * 68, 32 * 68, 1),
        "blk.0.attn_v.weight": ((32, 64), 1000 + 96 * 68, 32 * 68, 1),
        "blk.0.attn_q.bias": ((64,), 64, 256, 0),
        "blk.0.attn_k.bias": ((32,), 320, 128, 0),
        "blk.0.attn_v.bias": ((32,), 448, 128, 0),
    }
    assert all(name == info.name for name, info in parts.items())
    wide = apart({**METADATA, "llama.attention.key_length": 24}, FUSED)
    assert [info.shape[0] for info in wide.values()] == [32, 48, 48]


@pytest.mark.parametrize(
    "change",
    [
        {"llama.attention.head_count": None},
        {"llama.attention.head_count_kv": np.array([2, 2])},
        {"llama.attention.head_count_kv": 4},
        {"llama.attention.head_count": -1},
        {"llama.embedding_length": "64"},
        {"llama.attention.key_length": 2**40},
        {"llama.attention.key_length": 0},
        {"general.architecture": None},
    ],
)
def test_what_is_not_told_stays(change: dict[str, Any]) -> None:
    """A file whose metadata do not fit is left as it is: its loader says what is wrong with it."""
    assert apart({**METADATA, **change}, FUSED) == {FUSED.name: FUSED}


def test_other_tensors_of_that_name_stay() -> None:
    """Of a recurrent layer; beside tensors that are apart already; of more dimensions than two."""
    conv = TensorInfo("blk.0.ssm_conv1d.weight", "F32", (128, 4), 0, 2048)
    keys = TensorInfo("blk.0.attn_k.weight", "F32", (32, 64), 0, 8192)
    deep = TensorInfo("blk.0.attn_qkv.weight", "F32", (128, 2, 32), 0, 32768)
    for infos in ((FUSED, conv), (FUSED, keys), (deep,)):
        assert apart(METADATA, *infos) == {info.name: info for info in infos}


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_the_same_logits(tmp_path: Path, quant: str) -> None:
    """A model is the same, down to the bit, whole and as a rank's shard, whether its file has its tensors fused or not."""
    plain = write_tiny_model(tmp_path / "plain.gguf", quant=quant, head_dim=32)
    fused = fuse(plain, tmp_path / "fused.gguf")
    with GGUFFile.open(plain) as one, GGUFFile.open(fused) as other:
        assert one.tensors.keys() == other.tensors.keys()
        for name in one.tensors:
            assert one.data(name).tobytes() == other.data(name).tobytes()
        assert logits(one).tobytes() == logits(other).tobytes()
        shard = load_model(other, ReferenceOps(1), Shard(1, 2))
        assert (shard.heads, shard.kv_heads) == (2, 1)


def logits(file: GGUFFile) -> Any:
    ops = ReferenceOps(1)
    model = load_model(file, ops)
    ops.allocate_kv(model.layers, 1, model.kv_heads, model.head_dim)
    ids = np.arange(1, 8, dtype=np.int32)
    one = np.array([0], np.int32)
    positions = np.arange(7, dtype=np.int32)
    step = StepInputs(ids, positions, one.repeat(7), np.array([0, 7], np.int32), one + 7, one[None], positions)
    return ops.run(model.forward, step).copy()
