"""What a rank reads of a model, and that ranks together make the logits of one, down to the bit, in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks_in_threads import ROWS, Shards
from tiny_model import write_tiny_model

from helexa.errors import ModelFileError
from helexa.formats.gguf import GGUFFile
from workers import group
from workers.group import Parts, pieces_of
from workers.inputs import StepInputs
from workers.models.registry import load_model
from workers.ops.native import library, program
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops
from workers.ops.reference import ReferenceOps
from workers.weights.sharding import GATED_UNIT, Shard

VOCAB = 260
OPS: dict[str, Callable[[], Ops]] = {"reference": lambda: ReferenceOps(1)}
if library.why_missing() is None:
    for isa in library.instruction_sets():
        OPS["native" if isa == library.instruction_sets()[0] else isa] = partial(NativeOps, 1, ROWS, ROWS, isa)
    OPS["native-direct"] = lambda: NativeOps(2, ROWS, ROWS, direct=True)


@pytest.fixture(scope="module", params=["F32", "Q4_1", "Q8_0"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return GGUFFile.open(write_tiny_model(path, heads=9, kv_heads=3, head_dim=32, hidden=160, quant=request.param))


def step(rows: int, wanted: list[int]) -> StepInputs:
    """One sequence from its beginning."""
    return StepInputs(
        token_ids=(np.arange(rows, dtype=np.int32) * 37 + 5) % VOCAB,
        positions=np.arange(rows, dtype=np.int32),
        sequence_of_row=np.zeros(rows, np.int32),
        row_start=np.array([0, rows], np.int32),
        context_lens=np.array([rows], np.int32),
        block_tables=np.arange(-(-rows // 16), dtype=np.int32)[None],
        logit_rows=np.array(wanted, np.int32),
    )


@pytest.mark.parametrize("ops", OPS)
def test_ranks_make_the_logits_of_one(file: GGUFFile, ops: str) -> None:
    """At 1, 2 and 3 ranks, for one row and for many, and where no row wants logits."""
    whole, *shards = (Shards(file, ranks, OPS[ops], VOCAB) for ranks in (1, 2, 3))
    for inputs in (step(40, [0, 17, 39]), step(1, [0]), step(5, []), step(64, [63])):
        expected = whole.run(inputs)
        assert expected.shape == (len(inputs.logit_rows), VOCAB)
        for ranks in shards:
            assert ranks.run(inputs).tobytes() == expected.tobytes()


@pytest.mark.parametrize("width", [64, 128, VOCAB], ids=["model and heads", "hidden", "logits"])
@pytest.mark.parametrize("ops", ["reference", "native"])
def test_a_wrong_order_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ops: str, width: int) -> None:
    """Were the columns of two ranks in each other's place, in rows of one width alone, the comparison would see it."""
    if ops not in OPS:
        pytest.skip("native ops are not built")
    file = GGUFFile.open(write_tiny_model(tmp_path / "even.gguf", heads=4, kv_heads=4, hidden=128))
    inputs = step(20, [19])
    expected = Shards(file, 1, OPS[ops], VOCAB).run(inputs)
    assert Shards(file, 2, OPS[ops], VOCAB).run(inputs).tobytes() == expected.tobytes()

    def swapped(parts: Parts, rank: int) -> list[tuple[int, int]]:
        (first, count), (second, _) = (pieces_of(parts, place)[0] for place in (rank, 1 - rank))
        return [(second if sum(parts[0]) == width else first, count)]

    monkeypatch.setattr(group, "pieces_of", swapped)
    monkeypatch.setattr(program, "pieces_of", swapped)
    assert Shards(file, 2, OPS[ops], VOCAB).run(inputs).tobytes() != expected.tobytes()


class Watched:
    """A file that notes which bytes of its tensors are looked at."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.read: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def data_of_rows(self, name: str, first: int, end: int) -> Any:
        info = self._file.tensors[name]
        size = info.nbytes // info.shape[0]
        self.read[name] = self.read.get(name, 0) + (end - first) * size
        return self._file.data(name)[first * size : end * size]

    def data(self, name: str) -> Any:
        self.read[name] = self.read.get(name, 0) + self._file.tensors[name].nbytes
        return self._file.data(name)


def test_a_rank_reads_only_its_rows(file: GGUFFile) -> None:
    """Each byte of every matrix is read by one rank, and of vectors by all."""
    totals: dict[str, int] = {}
    for rank in range(3):
        watched = Watched(file)
        load_model(watched, ReferenceOps(1), Shard(rank, 3))  # type: ignore[arg-type]
        for name, nbytes in watched.read.items():
            totals[name] = totals.get(name, 0) + nbytes
    for name, info in file.tensors.items():
        assert totals[name] == info.nbytes * (1 if len(info.shape) == 2 else 3), name


def test_more_ranks_than_kv_heads_are_refused(file: GGUFFile) -> None:
    """In words that name the remedy."""
    with pytest.raises(
        ModelFileError, match=r"3 KV heads cannot be shared by 4 ranks: set devices\.tensor_parallel to at most 3"
    ):
        load_model(file, ReferenceOps(1), Shard(0, 4))


def test_shares_are_whole_units_and_as_even_as_they_go() -> None:
    """Uneven where units do not divide; smaller units where there are fewer than ranks; nothing is lost."""
    assert Shard(1, 2).part(160, GATED_UNIT).widths == (64, 96)
    assert Shard(0, 3).part(9).widths == (3, 3, 3) and Shard(0, 2).part(3).widths == (1, 2)
    assert Shard(0, 3).part(260, 16).widths == (80, 96, 84)
    assert Shard(0, 3).part(40, 32).widths == (16, 16, 8)
    part = Shard(2, 3).part(100, 16)
    assert (part.first, part.end, part.total) == (64, 100, 100) and part.times(3).first == 192
    for total in range(3, 300):
        for ranks in (1, 2, 3):
            widths = Shard(0, ranks).part(total, 32).widths
            assert sum(widths) == total and min(widths) > 0
