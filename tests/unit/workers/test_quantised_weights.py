"""Quantising at load: which tensors, with what values, and what is kept on disk for the next time."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny_model

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from helexa.formats.ggml_types import dequantise
from helexa.formats.quantise import QUANTS, quantise
from workers.loading import system_fingerprint
from workers.ops.reference import ReferenceOps
from workers.weights import quant_cache, quantised
from workers.weights.opening import Quantising, open_model
from workers.weights.quantised import QuantisedCheckpoint, quantised_info
from workers.weights.summary import load_summary
from workers.weights.tensors import Tensors

LIMIT = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linears of 256 columns, but for the down projection's 96."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "m.gguf", head_dim=64, hidden=96)


def info(name: str, *shape: int, type: str = "F16") -> TensorInfo:
    return TensorInfo(name, type, shape, 0, 2 * int(np.prod(shape)))


@pytest.mark.parametrize(
    ("name", "shape", "type", "becomes"),
    [
        ("blk.0.ffn_up.weight", (96, 512), "F16", "Q4_K"),
        ("model.layers.0.mlp.up_proj.weight", (96, 512), "BF16", "Q4_K"),
        ("lm_head.weight", (96, 512), "F32", "Q4_K"),
        ("output.weight", (96, 512), "F32", "Q4_K"),
        ("blk.0.ffn_up_exps.weight", (4, 96, 512), "F32", "Q4_K"),
        ("blk.0.ffn_up.weight", (96, 288), "F16", "Q5_0"),
        ("blk.0.ffn_up.weight", (96, 40), "F16", None),
        ("blk.0.ffn_up.weight", (96, 512), "Q8_0", None),
        ("blk.0.attn_norm.weight", (512,), "F32", None),
        ("token_embd.weight", (96, 512), "F16", None),
        ("model.embed_tokens.weight", (96, 512), "BF16", None),
        ("blk.0.ffn_gate_inp.weight", (96, 512), "F32", None),
        ("model.layers.0.mlp.gate.weight", (96, 512), "BF16", None),
        ("model.layers.0.mlp.gate_proj.weight", (96, 512), "BF16", "Q4_K"),
        ("model.visual.blocks.0.attn.qkv.weight", (96, 512), "BF16", None),
        ("model.layers.0.linear_attn.conv1d.weight", (96, 1, 512), "BF16", None),
    ],
)
def test_what_is_quantised(name: str, shape: tuple[int, ...], type: str, becomes: str | None) -> None:
    """Float matrices; not embeddings, vectors, routers, the vision part, or what is quantised."""
    made = quantised_info(info(name, *shape, type=type), "q4k")
    assert (made.type if made else None) == becomes and (made is None or made.shape == shape)


def opened(model: Path, quant: str, cache: Path | None = None, limit: int = LIMIT) -> QuantisedCheckpoint:
    return QuantisedCheckpoint(open_checkpoint(model), quant, 2, lambda done, total: None, cache, limit)


def contents(checkpoint: Checkpoint) -> dict[str, tuple[str, bytes]]:
    return {name: (info.type, checkpoint.data(name).tobytes()) for name, info in checkpoint.tensors.items()}


@pytest.mark.parametrize("quant", QUANTS)
def test_values_are_the_quantisers(model: Path, quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pieces they are made in; the others are the file's own. Models take them like any other."""
    monkeypatch.setattr(quantised, "CHUNK_WEIGHTS", 1000)
    source, made = open_checkpoint(model), opened(model, quant)
    for name, (type, data) in contents(made).items():
        before = source.tensors[name]
        if type == before.type:
            assert data == source.data(name).tobytes()
        else:
            assert type == (QUANTS[quant] if quant != "q4k" or before.shape[1] == 256 else "Q5_0")
            assert data == quantise(type, dequantise(before.type, source.data(name), before.shape[1])).tobytes()
    tensor = Tensors(made).take("blk.0.ffn_down.weight", (256, 96))
    assert tensor.type == ("Q5_0" if quant == "q4k" else QUANTS[quant])


def test_rows_alone_are_quantised(model: Path, tmp_path: Path) -> None:
    """A rank's rows have the bytes they have among all, and no others are made; from the cache of one that keeps, too, where nothing is
    left by one that does not."""
    done: list[int] = []

    def one_that_does_not_keep() -> QuantisedCheckpoint:
        source = open_checkpoint(model)
        return QuantisedCheckpoint(source, "q8_0", 1, lambda count, _: done.append(count), tmp_path / "cache", LIMIT, keeps=False)

    name, columns, kept = "blk.0.ffn_down.weight", 96, "token_embd.weight"
    expected = contents(opened(model, "q8_0"))
    size = len(expected[name][1]) // 256
    rows = one_that_does_not_keep()
    assert rows.data_of_rows(name, 16, 48).tobytes() == expected[name][1][16 * size : 48 * size] and done == [32 * columns]
    assert rows.data_of_rows(kept, 3, 5).tobytes() == expected[kept][1][3 * 1024 : 5 * 1024] and len(done) == 1
    rows.finish()
    assert not (tmp_path / "cache").exists()
    keeping = opened(model, "q8_0", tmp_path / "cache")
    assert keeping.data_of_rows(name, 16, 48).tobytes() == expected[name][1][16 * size : 48 * size]
    for other in expected.keys() - {name}:
        keeping.data(other)
    keeping.finish()
    rows = one_that_does_not_keep()
    assert rows.from_cache
    assert rows.data_of_rows(name, 16, 48).tobytes() == expected[name][1][16 * size : 48 * size] and len(done) == 1


def test_progress_is_told(model: Path) -> None:
    """Weights done and to do, rising to all."""
    told: list[tuple[int, int]] = []
    contents(QuantisedCheckpoint(open_checkpoint(model), "q4_0", 1, lambda *count: told.append(count)))
    assert told == sorted(told) and told[-1][0] == told[-1][1] and len(told) == 14


def test_a_second_start_reads_the_cache(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes, with no quantiser called; one private file, with nothing half written beside it."""
    folder = tmp_path / "cache" / "quantised"
    first = opened(model, "q4_0", folder)
    expected = contents(first)
    assert not first.from_cache
    first.finish()
    first.close()
    (path,) = folder.iterdir()
    assert path.suffix == quant_cache.SUFFIX and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(quantised, "quantise_rows", None)
    second = opened(model, "q4_0", folder)
    assert second.from_cache and contents(second) == expected
    assert not second.data("blk.0.attn_q.weight").flags.owndata


def test_other_files_and_formats_have_their_own(model: Path, tmp_path: Path) -> None:
    """Another quantisation, or a model file that was changed, finds nothing."""

    def kept(path: Path, quant: str) -> bool:
        one = opened(path, quant, tmp_path / "cache")
        contents(one)
        one.finish()
        one.close()
        return one.from_cache

    own = tmp_path / "m.gguf"
    own.write_bytes(model.read_bytes())
    assert not kept(own, "q4_0") and kept(own, "q4_0")
    assert not kept(own, "q8_0") and kept(own, "q8_0")
    os.utime(own, ns=(1, 1))
    assert not kept(own, "q4_0")
    assert len(list((tmp_path / "cache").iterdir())) == 3


@pytest.fixture
def kept_file(model: Path, tmp_path: Path) -> Iterator[Path]:
    first = opened(model, "q4_1", tmp_path / "cache")
    contents(first)
    first.finish()
    first.close()
    (path,) = (tmp_path / "cache").iterdir()
    yield path


@pytest.mark.parametrize("place", [0, 100, -200, -20, -1])
def test_a_damaged_file_is_made_again(model: Path, kept_file: Path, place: int) -> None:
    """A byte anywhere: in the data it costs its tensor, elsewhere the file; the bytes handed out are right, the next file is whole."""
    content = bytearray(kept_file.read_bytes())
    content[place] ^= 0x40
    kept_file.write_bytes(content)
    expected = contents(opened(model, "q4_1"))
    for _ in range(3):
        one = opened(model, "q4_1", kept_file.parent)
        assert contents(one) == expected
        one.finish()
        one.close()
    assert one.from_cache


@pytest.mark.parametrize("size", [0, 1, 8, 60, 5000])
def test_a_cut_file_is_ignored(model: Path, kept_file: Path, size: int) -> None:
    """However short."""
    kept_file.write_bytes(kept_file.read_bytes()[:size])
    one = opened(model, "q4_1", kept_file.parent)
    assert not one.from_cache and contents(one) == contents(opened(model, "q4_1"))
    one.finish()
    assert opened(model, "q4_1", kept_file.parent).from_cache


def test_hostile_footers(kept_file: Path, model: Path) -> None:
    """A footer whose digest fits but whose places do not: offsets past the file, other tensors, another key."""
    wanted = opened(model, "q4_1")._made
    key = kept_file.stem
    reader = quant_cache.CacheReader.open(kept_file, key, wanted)
    assert reader is not None
    good = dict(reader._tensors)
    name = next(iter(good))
    type, offset, nbytes, crc = good[name]
    for tensors in (
        {**good, name: (type, 10**12, nbytes, crc)},
        {**good, name: (type, -64, nbytes, crc)},
        {**good, name: (type, offset, nbytes + 1, crc)},
        {**good, name: ("Q4_0", offset, nbytes, crc)},
        {**good, "more": good[name]},
        {key: value for key, value in good.items() if key != name},
    ):
        writer = quant_cache.CacheWriter.create(kept_file, key, 1)
        assert writer is not None
        writer._tensors = tensors
        writer.finish()
        assert quant_cache.CacheReader.open(kept_file, key, wanted) is None
    writer = quant_cache.CacheWriter.create(kept_file, "another key", 1)
    assert writer is not None
    writer._tensors = good
    writer.finish()
    assert quant_cache.CacheReader.open(kept_file, key, wanted) is None


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    """Down to the limit; the new one last. What an ended process left is removed, a running one's is not."""
    for age, name in enumerate(("new", "old", "older")):
        path = tmp_path / f"{name}{quant_cache.SUFFIX}"
        path.write_bytes(b"x" * 100)
        os.utime(path, (10**9 - age, 10**9 - age))
    (tmp_path / f".x{quant_cache.SUFFIX}.{2**22 + 1}").touch()
    (tmp_path / f".y{quant_cache.SUFFIX}.{os.getpid()}").touch()
    (tmp_path / "notes.txt").write_text("x" * 1000)
    keep = tmp_path / f"older{quant_cache.SUFFIX}"
    quant_cache.trim(tmp_path, 200, keep)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"new.blocks", "older.blocks", f".y.blocks.{os.getpid()}", "notes.txt"}
    quant_cache.trim(tmp_path, 0, keep)
    assert not list(tmp_path.glob("*.blocks"))


def test_trouble_with_the_disk_costs_only_the_cache(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be made, a disk that is nearly full, a limit that is too small, a link in the file's place."""
    (tmp_path / "file").touch()
    expected = contents(opened(model, "q4_0"))
    with caplog.at_level(logging.INFO, "worker"):
        one = opened(model, "q4_0", tmp_path / "file")
        assert contents(one) == expected
        one.finish()
        monkeypatch.setattr(
            quant_cache.shutil, "disk_usage", lambda path: os.terminal_size((1, 1)) and type("U", (), {"free": 10})
        )
        assert contents(opened(model, "q4_0", tmp_path / "full")) == expected
    assert len(caplog.messages) == 2 and all("not kept" in message for message in caplog.messages)
    assert contents(opened(model, "q4_0", tmp_path / "small", 1000)) == expected
    assert not list((tmp_path / "full").iterdir()) and not (tmp_path / "small").exists()


def test_a_load_that_fails_keeps_nothing(model: Path, tmp_path: Path) -> None:
    """Half of the tensors, or a close before the end."""
    one = opened(model, "q4_0", tmp_path / "cache")
    one.data("blk.0.attn_q.weight")
    one.finish()
    one.close()
    assert not list((tmp_path / "cache").iterdir())


def test_values_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    """It names the tensor."""
    path = write_tiny_model(tmp_path / "m.gguf", head_dim=64, scale=float("inf"))
    with pytest.raises(ModelFileError, match=r"m\.gguf: tensor blk\.0\.attn_q\.weight cannot be quantised: its values are not"):
        opened(path, "q4_0").data("blk.0.attn_q.weight")


def test_opening_by_role(model: Path, tmp_path: Path) -> None:
    """As the file is without `quant`; a line where the cache has it; an unknown quantisation and other files are errors."""
    files, lines = {"gguf": str(model)}, list[str]()
    assert open_model(files, Quantising(), 1, lines.append).tensors["blk.0.attn_q.weight"].type == "F32"
    for _ in range(2):
        made = open_model(files, Quantising("q4k", str(tmp_path / "cache"), LIMIT), 1, lines.append)
        assert isinstance(made, QuantisedCheckpoint)
        contents(made)
        made.finish()
    assert lines == ["weights in q4k are on disk from an earlier start"]
    with pytest.raises(ModelFileError, match="quantised to q9; possible: q4_0"):
        open_model(files, Quantising("q9"), 1, lines.append)
    with pytest.raises(ModelFileError, match="a model of onnx: neither"):
        open_model({"onnx": "x"}, Quantising(), 1, lines.append)


def test_the_fingerprint_names_the_quantisation(model: Path) -> None:
    """Another quantisation of a file is another model."""
    ops = ReferenceOps(1)
    names = {system_fingerprint([model], quant, ops) for quant in ("", *QUANTS)}
    assert len(names) == len(QUANTS) + 1


def test_the_summary_is_one_line(model: Path) -> None:
    """Types with their counts and bytes, what they were made to, KV and memory."""
    line = load_summary(opened(model, "q4_0"), "q4_0", 123 << 20, 512, 3 << 30)
    assert line == (
        "gguf, 1 M weights: 14 Q4_0 (0.3 MiB), 6 F32 (0.3 MiB), quantised at load to q4_0, packed 123.0 MiB; "
        "KV 512 bytes a token; 3.00 GiB left for KV"
    )
