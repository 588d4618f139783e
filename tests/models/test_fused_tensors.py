"""Every architecture from a GGUF whose tensors are fused as a converter may do it: the bits of the logits are those of the plain file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hybrid_checkpoints
import numpy as np
import pytest
import tiny_checkpoints
from fused_gguf import fuse

from helexa.formats.gguf import GGUFFile
from workers.inputs import StepInputs
from workers.models.registry import RecurrentModel, load_model
from workers.ops.reference import ReferenceOps

pytest.importorskip("torch")
pytest.importorskip("transformers")

PLAIN = ["llama-tied-bias", "smollm3", "qwen2", "qwen3", "qwen3-moe", "gemma2", "gemma3"]
HYBRID = ["next-moe", "35", "35-moe"]


def logits(path: Path) -> Any:
    """Of a prompt, at every position."""
    ops, ids = ReferenceOps(1), np.arange(3, 23, dtype=np.int32)
    with GGUFFile.open(path) as file:
        model = load_model(file, ops)
    ops.allocate_kv(model.layers, 2, model.kv_heads, model.head_dim)
    if isinstance(model, RecurrentModel):
        ops.allocate_state(model.recurrent, 1)
    rows, zero = np.arange(len(ids), dtype=np.int32), np.zeros(1, np.int32)
    bounds, table = np.array([0, len(ids)], np.int32), np.array([[0, 1]], np.int32)
    step = StepInputs(ids, rows, zero.repeat(len(ids)), bounds, bounds[1:], table, rows, zero)
    return ops.run(model.forward, step).copy()


def held(plain: Path, fused: Path) -> None:
    with GGUFFile.open(plain) as one, GGUFFile.open(fused) as other:
        differ = one.tensors.keys() ^ other.tensors.keys()
    assert all("_exps." in name for name in differ)
    expected = logits(plain)
    assert np.isfinite(expected).all() and np.std(expected) > 0.1
    assert logits(fused).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", PLAIN)
def test_decoders(tmp_path: Path, name: str) -> None:
    """Also with weights fused and biases apart."""
    case = next(case for case in tiny_checkpoints.CASES if case.name == name)
    plain = tiny_checkpoints.write_gguf(case, tiny_checkpoints.make_model(case), tmp_path / "plain.gguf")
    for biases in (True, False):
        held(plain, fuse(plain, tmp_path / "fused.gguf", biases=biases))


@pytest.mark.parametrize("name", HYBRID)
def test_hybrids(tmp_path: Path, name: str) -> None:
    """Queries have gates beside them, and recurrent layers have a tensor of the same name that is no such thing."""
    case = next(case for case in hybrid_checkpoints.CASES if case.name == name)
    plain = hybrid_checkpoints.write_gguf(case, hybrid_checkpoints.make(case), tmp_path / "plain.gguf")
    held(plain, fuse(plain, tmp_path / "fused.gguf"))
