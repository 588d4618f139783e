"""The reader of Hugging Face checkpoints: single and sharded files, and hostile ones."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import open_checkpoint
from helexa.formats.gguf import GGUFFile
from helexa.formats.safetensors import SafetensorsCheckpoint

ARRAYS = {
    "model.embed_tokens.weight": np.arange(24, dtype=np.float32).reshape(6, 4),
    "model.norm.weight": np.array([1, 2, 3, 4], np.float16),
    "model.experts": np.arange(12, dtype=np.uint16).reshape(2, 3, 2),  # as BF16
}
DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16"}


def header_of(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    return header


def packed(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def file_of(arrays: dict[str, np.ndarray]) -> bytes:
    return packed(header_of(arrays), b"".join(array.tobytes() for array in arrays.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 4, "rope_scaling": {"factor": 2}, "none": null}'
    )
    return tmp_path


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_single_file(folder: Path) -> None:
    """By its folder or by its name; tensors with their types and shapes, views of the map; config.json as metadata."""
    (folder / "model.safetensors").write_bytes(file_of(ARRAYS))
    for path in (folder, folder / "model.safetensors"):
        model = open_checkpoint(path)
        assert model.format == "safetensors" and model.files == (folder / "model.safetensors", folder / "config.json")
        assert {name: (info.type, info.shape) for name, info in model.tensors.items()} == {
            "model.embed_tokens.weight": ("F32", (6, 4)),
            "model.norm.weight": ("F16", (4,)),
            "model.experts": ("BF16", (2, 3, 2)),
        }
        for name, array in ARRAYS.items():
            assert model.data(name).tobytes() == array.tobytes() and not model.data(name).flags.owndata
        assert model.get("hidden_size", int) == 4 and model.get("rope_scaling.factor", float) == 2.0
        assert model.get("none", int, 7) == model.get("rope_scaling.type.x", int, 7) == 7
        with pytest.raises(ModelFileError, match=r"rope_scaling\.kind is missing"):
            model.get("rope_scaling.kind", str)
        with pytest.raises(ModelFileError, match="hidden_size is of type int, expected str"):
            model.get("hidden_size", str)
        model.close()
        with pytest.raises(ModelFileError, match="closed"):
            model.data("model.experts")


def test_the_packages_own_files(folder: Path) -> None:
    """Written by the `safetensors` package."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    arrays = {name: array for name, array in ARRAYS.items() if array.dtype != np.uint16}
    numpy_files.save_file(arrays, folder / "model.safetensors", metadata={"format": "pt", "note": '[{"a,b": "\\"}]'})
    model = open_checkpoint(folder)
    assert {name: model.data(name).tobytes() for name in model.tensors} == {k: v.tobytes() for k, v in arrays.items()}


def shards(folder: Path) -> list[Path]:
    names = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    weight_map = {}
    for file, (name, array) in zip(names, ARRAYS.items(), strict=True):
        (folder / file).write_bytes(file_of({name: array}))
        weight_map[name] = file
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return [folder / name for name in [*names, index.name]]


def test_several_files_with_an_index(folder: Path) -> None:
    """By the folder, the index, or any of the files."""
    files = shards(folder)
    for path in (folder, *files):
        model = open_checkpoint(path)
        assert {name: model.data(name).tobytes() for name in model.tensors} == {k: v.tobytes() for k, v in ARRAYS.items()}
        assert model.files == (*files[:3], folder / "config.json")


def test_files_that_do_not_fit_their_index(folder: Path) -> None:
    """A missing file, a tensor in another file or in two, a path that leads elsewhere, and a part without its index."""
    files = shards(folder)
    good = json.loads(files[3].read_text())
    swapped = dict(zip(good["weight_map"], list(good["weight_map"].values())[::-1], strict=True))
    for weight_map, text in (
        (swapped, "is not in"),
        ({**good["weight_map"], "more": files[0].name}, "tensor more is not in"),
        ({**good["weight_map"], "x": "../evil.safetensors"}, "not the name"),
        ({**good["weight_map"], "x": "/etc/passwd"}, "not the name"),
        ({**good["weight_map"], "x": "a\0b.safetensors"}, "not the name"),
        ({**good["weight_map"], "x": "model.bin"}, "not the name"),
        ({**good["weight_map"], "x": "gone.safetensors"}, "cannot be read"),
        ({}, "names 0 files"),
        ({str(i): f"{i}.safetensors" for i in range(2000)}, "names 2000 files"),
    ):
        files[3].write_text(json.dumps({"weight_map": weight_map}))
        assert text in refused(folder)
    for text in ("[]", "{", '{"weight_map": {"a": 1}}', '{"weight_map": []}', "[" * 100_000):
        files[3].write_text(text)
        assert "the index is damaged" in refused(folder)
    files[3].write_text(json.dumps(good))
    files[1].write_bytes(files[0].read_bytes())
    assert "in another file of the model too" in refused(folder)
    files[3].unlink()
    assert "one of several files" in refused(files[0])
    assert "several models" in refused(folder)


def test_folders_without_a_model(tmp_path: Path) -> None:
    """What is there instead is named: nothing, pickles, several GGUFs; a single GGUF is opened."""
    assert "holds no .safetensors and no .gguf" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "only pickled weights (pytorch_model.bin)" in refused(tmp_path)
    assert "a pickled file can run code" in refused(tmp_path / "pytorch_model.bin")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    assert "2 .gguf files; name one" in refused(tmp_path)
    (tmp_path / "b.gguf").unlink()
    assert isinstance(open_checkpoint(tmp_path), GGUFFile)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (None, "config.json: missing"),
        ("", "empty"),
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"quantization_config": {"quant_method": "gptq"}}', "quantised by `gptq`"),
        (" " * 5_000_000, "at most 4194304 are read"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, config: str | None, text: str) -> None:
    """Missing, damaged, too large, or of weights in a form that is not served."""
    (tmp_path / "model.safetensors").write_bytes(file_of(ARRAYS))
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert text in refused(tmp_path)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "text"),
    [
        ({"a": {**GOOD, "dtype": "F64"}}, 8, "type F64, which is not served; served: F32, F16, BF16"),
        ({"a": {**GOOD, "dtype": "I64"}}, 8, "type I64"),
        ({"a": {**GOOD, "dtype": "F8_E4M3"}}, 8, "type F8_E4M3"),
        ({"a": {**GOOD, "dtype": 1}}, 8, "damaged"),
        ({"a": {**GOOD, "shape": [-2]}}, 8, "damaged"),
        ({"a": {**GOOD, "shape": [2.0]}}, 8, "damaged"),
        ({"a": {**GOOD, "shape": [2**64]}}, 8, "damaged"),
        ({"a": {**GOOD, "shape": [2**63 - 1, 2**63 - 1]}}, 8, "bytes, not 8"),
        ({"a": {**GOOD, "shape": [0], "data_offsets": [0, 0]}}, 0, "is 0"),
        ({"a": {**GOOD, "shape": [1] * 9}}, 8, "damaged"),
        ({"a": {**GOOD, "data_offsets": [0, 4]}}, 8, "are 8 bytes, not 4"),
        ({"a": {**GOOD, "data_offsets": [8, 0]}}, 8, "bytes, not -8"),
        ({"a": {**GOOD, "data_offsets": [0, 8, 16]}}, 8, "damaged"),
        ({"a": {**GOOD, "data_offsets": [4, 12]}}, 12, "follows a gap"),
        ({"a": GOOD, "b": GOOD}, 8, "overlaps another"),
        ({"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}}, 12, "overlaps another"),
        ({"a": GOOD}, 7, "tensors end at"),
        ({"a": GOOD}, 9, "tensors end at"),
        ({"a": {**GOOD, "more": 1}}, 8, "damaged"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "damaged"),
        ({"": GOOD}, 8, "name is empty"),
        ({"a\0": GOOD}, 8, "holds a zero"),
        ({"a": GOOD, "__metadata__": {"x": 1}}, 8, "damaged"),
        ({"a": GOOD, "__metadata__": {"x": {"y": "z"}}}, 8, "damaged"),
        ([GOOD], 8, "damaged"),
        (b"", 8, "damaged"),
        (b"null", 0, "damaged"),
        (b"{", 8, "damaged"),
        (b'{"a": "\xff"}', 8, "damaged"),
        (b"[" * 1_000_000, 8, "damaged"),
        (b'{"a":' * 100_000, 8, "damaged"),
        (json.dumps({"a": GOOD}).encode()[:-1] + b"," + json.dumps({"a": GOOD}).encode()[1:], 8, "names a tensor twice"),
        (json.dumps({"a": GOOD}).encode()[:-1] + b',"\\u0061":' + json.dumps(GOOD).encode() + b"}", 8, "names a tensor twice"),
    ],
)
def test_hostile_headers(folder: Path, header: Any, data: int, text: str) -> None:
    """Every field out of its bounds is a ModelFileError that says so."""
    (folder / "model.safetensors").write_bytes(packed(header, bytes(data)))
    assert text in refused(folder)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**32, 32 * 1024 * 1024 + 1, 1000])
def test_lengths_that_are_not_believed(folder: Path, length: int) -> None:
    """A header's length is held against the file and a limit before anything is read."""
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    tracemalloc.start()
    refused(folder)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_large_hostile_header_stays_small(folder: Path) -> None:
    """Millions of empty lists where an entry should be: not made into objects."""
    (folder / "model.safetensors").write_bytes(packed(b'{"a":[' + b"[]," * 3_000_000 + b"[]]}", b""))
    tracemalloc.start()
    refused(folder)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_change_is_refused_or_read(folder: Path, data: st.DataObject) -> None:
    """A few bytes changed, or the file cut: a ModelFileError, or tensors that lie within the file."""
    content = bytearray(file_of(ARRAYS))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "model.safetensors"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        model = SafetensorsCheckpoint.open(path)
    except ModelFileError:
        return
    for name, info in model.tensors.items():
        assert len(model.data(name)) == info.nbytes
