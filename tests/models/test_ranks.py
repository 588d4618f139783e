"""Every kind of layer, shared out between device workers: they make the tokens and digests that one makes alone, with either op set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rank_processes import RankProcesses, everything

pytest.importorskip("transformers")

import hybrid_checkpoints as hybrid
import tiny_checkpoints as plain

from helexa.formats.checkpoint import Checkpoint, model_path, open_checkpoint
from workers.models.registry import load_model
from workers.ops.reference import ReferenceOps
from workers.weights.sharding import Shard

pytestmark = pytest.mark.process

# With the most ranks that a case's KV heads and key heads allow, of 2 and 3.
PLAIN = {"llama-mha": 3, "smollm3": 2, "qwen2": 2, "gemma3-capped": 2, "gemma2": 2, "qwen3-moe": 2}
HYBRID = {"next-moe": 2, "35": 2, "35-nested": 3, "35-moe": 2}


@pytest.fixture(scope="module", params=[*PLAIN, *HYBRID])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Its GGUF and its folder, and how many ranks hold it."""
    folder = tmp_path_factory.mktemp("models")
    if request.param in PLAIN:
        case = next(case for case in plain.CASES if case.name == request.param)
        model = plain.make_model(case)
        sources = plain.write_gguf(case, model, folder / "m.gguf"), plain.write_folder(model, folder / "hf")
    else:
        other = next(case for case in hybrid.CASES if case.name == request.param)
        outside = hybrid.make(other)
        sources = hybrid.write_gguf(other, outside, folder / "m.gguf"), hybrid.write_folder(other, outside, folder / "hf")
    return {"gguf": {"gguf": str(sources[0])}, "safetensors": {"safetensors": str(sources[1])}, "case": {"name": request.param}}


def seen(folder: Path, files: dict[str, str], ranks: int, recurrent: bool, ops: str) -> list[Any]:
    with RankProcesses(folder, files, ranks, ops=ops) as group:
        loaded = group.load()
        assert all(bool(item.state_bytes) == recurrent for item in loaded)
        group.allocate(snapshots=2 if recurrent else 0)
        return everything(group.step, plain.VOCAB, recurrent).seen


@pytest.mark.parametrize(("source", "ops"), [("gguf", "native"), ("safetensors", "reference")])
def test_ranks_make_what_one_makes(files: dict[str, dict[str, str]], source: str, ops: str, tmp_path: Path) -> None:
    """The same tokens and digests, with the states of recurrent layers saved and gone on from."""
    name = files["case"]["name"]
    recurrent = name in HYBRID
    alone = seen(tmp_path, files[source], 1, recurrent, ops)
    assert len({hash for row in alone for hash in row[4].values()}) > 15
    assert seen(tmp_path, files[source], {**PLAIN, **HYBRID}[name], recurrent, ops) == alone


class Counting:
    """A checkpoint that counts how often each tensor's data are asked for."""

    def __init__(self, file: Checkpoint) -> None:
        self._file = file
        self.asked = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def data(self, name: str) -> Any:
        self.asked[name] += 1
        return self._file.data(name)


@pytest.mark.parametrize("source", ["gguf", "safetensors"])
def test_a_tensor_is_asked_for_once(files: dict[str, dict[str, str]], source: str) -> None:
    """By one rank and by one of two: a checkpoint that makes its data as they are read makes none of them twice."""
    for shard in (Shard(0, 1), Shard(1, 2)):
        file = Counting(open_checkpoint(model_path(files[source])))
        load_model(file, ReferenceOps(1), shard)  # type: ignore[arg-type]
        assert file.asked and max(file.asked.values()) == 1
