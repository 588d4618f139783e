"""The GGUF reader: agreement with the format's own package, and hostile files."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helexa.errors import ModelFileError
from helexa.formats.gguf import MAX_DEPTH, GGUFFile, model_files

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(
    name: str | bytes, shape: Iterable[int] = (32,), kind: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    dims = list(shape)
    count = len(dims) if dimensions is None else dimensions
    return text(name) + struct.pack("<I", count) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def build(
    entries: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file's bytes; `counts` overrides (tensors, entries)."""
    entries, tensors = list(entries), list(tensors)
    n_tensors, n_entries = counts or (len(tensors), len(entries))
    header = magic + struct.pack("<IQQ", version, n_tensors, n_entries) + b"".join(entries) + b"".join(tensors)
    return header + b"\0" * (-len(header) % 32) + data


GOOD = build(
    [
        entry("general.architecture", STRING, text("llama")),
        entry("llama.block_count", U32, struct.pack("<I", 2)),
        entry("tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("é")),
        entry("types", ARRAY, struct.pack("<IQ", I32, 2) + struct.pack("<2i", 1, 3)),
        entry("flag", BOOL, b"\1"),
    ],
    [tensor("w", (32, 2), 8), tensor("b", (4,), 0, 96)],
    bytes(range(68)) + b"\0" * 28 + struct.pack("<4f", 1, 2, 3, 4),
)


def opened(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return GGUFFile.open(path)


def refused(tmp_path: Path, data: bytes) -> str:
    """The one line with which the file is refused; it names the file."""
    with pytest.raises(ModelFileError) as caught:
        opened(tmp_path, data)
    message = caught.value.message
    assert "model.gguf" in message and "\n" not in message
    return message


def test_reads_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    """Metadata of every type and tensors of three types come out as the format's own package put them in."""
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(7)
    writer.add_uint64("big", 2**63)
    writer.add_int8("small", -3)
    writer.add_float32("eps", 0.5)
    writer.add_float64("wide", 1e300)
    writer.add_bool("yes", True)
    writer.add_string("words", "naïve 🙂")
    writer.add_array("list", ["x", "", "zz"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("bools", [True, False])
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((3, 64)).astype(np.float32)
    packed = gguf.quantize(dense, gguf.GGMLQuantizationType.Q4_1)
    cube = rng.standard_normal((2, 3, 5)).astype(np.float16)
    writer.add_tensor("dense", dense)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("cube", cube)
    writer.add_tensor("line", dense[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as file:
        assert file.get("general.architecture", str) == "llama"
        assert file.get("llama.block_count", int) == 7
        assert file.get("big", int) == 2**63
        assert file.get("small", int) == -3
        assert file.get("eps", float) == 0.5
        assert file.get("wide", float) == 1e300
        assert file.get("yes", bool) is True
        assert file.get("words", str) == "naïve 🙂"
        assert file.get("list", list) == ["x", "", "zz"]
        assert file.get("ints", np.ndarray).tolist() == [1, -2, 3]
        assert file.get("bools", np.ndarray).tolist() == [True, False]
        shapes = {name: (info.type, info.shape) for name, info in file.tensors.items()}
        assert shapes == {
            "dense": ("F32", (3, 64)),
            "packed": ("Q4_1", (3, 64)),
            "cube": ("F16", (2, 3, 5)),
            "line": ("F32", (64,)),
        }
        assert file.data("dense").tobytes() == dense.tobytes()
        assert file.data("packed").tobytes() == packed.tobytes()
        assert file.data("cube").tobytes() == cube.tobytes()
        view = file.data("line")
    assert view.tobytes() == dense[0].tobytes(), "a view outlives close"
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ModelFileError, match="closed"):
        file.data("line")


def test_get_names_file_and_field(tmp_path: Path) -> None:
    """A missing key, a wrong type and a missing tensor are each named; a default stands in for absence only."""
    file = opened(tmp_path, GOOD)
    assert file.get("llama.block_count", int) == 2
    assert file.get("llama.block_count", float) == 2.0
    assert file.get("absent", int, None) is None
    assert file.get("absent", int, 5) == 5
    with pytest.raises(ModelFileError, match=r"model\.gguf: absent is missing"):
        file.get("absent", int)
    with pytest.raises(ModelFileError, match=r"model\.gguf: flag is of type bool, expected int"):
        file.get("flag", int, 0)
    with pytest.raises(ModelFileError, match=r"model\.gguf: tensor nope is missing"):
        file.data("nope")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """A file cut at any offset is a ModelFileError."""
    opened(tmp_path, GOOD)
    for length in range(len(GOOD)):
        refused(tmp_path, GOOD[:length])


@pytest.mark.parametrize("count", [2**32 - 1, 2**63, 2**64 - 1, 1000])
@pytest.mark.parametrize("which", ["tensors", "entries"])
def test_hostile_counts(tmp_path: Path, which: str, count: int) -> None:
    """Counts that the file cannot hold are refused before anything is allocated for them."""
    tracemalloc.start()
    try:
        message = refused(tmp_path, build(counts=(count, 0) if which == "tensors" else (0, count)))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert str(count) in message


@pytest.mark.parametrize("kind", [U8, I32, STRING, ARRAY, BOOL, U64])
@pytest.mark.parametrize("count", [2**32 - 1, 2**63, 2**64 - 1, 100])
def test_hostile_array_counts(tmp_path: Path, kind: int, count: int) -> None:
    """So are counts of array members."""
    tracemalloc.start()
    try:
        assert "arr" in refused(tmp_path, build([entry("arr", ARRAY, struct.pack("<IQ", kind, count) + b"\0" * 16)]))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [2**32 - 1, 2**63, 2**64 - 1, 10_000])
def test_hostile_string_lengths(tmp_path: Path, length: int) -> None:
    """A key, a value and a member of an array that claim more bytes than there are."""
    lie = struct.pack("<Q", length) + b"abc"
    refused(tmp_path, build([lie + b"\0" * 16]))
    refused(tmp_path, build([entry("k", STRING, lie)]))
    refused(tmp_path, build([entry("k", ARRAY, struct.pack("<IQ", STRING, 1) + lie)]))


@pytest.mark.parametrize("alignment", [0, 1, 3, 24, 2**31])
def test_hostile_alignment(tmp_path: Path, alignment: int) -> None:
    """An alignment that is not a sensible power of two."""
    message = refused(tmp_path, build([entry("general.alignment", U32, struct.pack("<I", alignment))]))
    assert "general.alignment" in message
    assert "general.alignment" in refused(tmp_path, build([entry("general.alignment", STRING, text("32"))]))


def test_alignment_is_followed(tmp_path: Path) -> None:
    """The data starts at the next multiple of the file's own alignment."""
    header = build([entry("general.alignment", U32, struct.pack("<I", 256))], [tensor("b", (2,))])
    data = header + b"\0" * (-len(header) % 256) + struct.pack("<2f", 5, 6)
    file = opened(tmp_path, data)
    assert file.tensors["b"].offset % 256 == 0
    assert file.data("b").view("<f4").tolist() == [5, 6]


@pytest.mark.parametrize(
    "shape",
    [(2**63,), (2**32, 2**32), (2**62, 4), (2**64 - 32, 2**64 - 1, 2**64 - 1, 2**64 - 1), (2**61, 8), (1, 2**64 - 1)],
)
def test_hostile_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Products that overflow 64 bits, and come out small there, are seen as what they are."""
    assert "tensor w" in refused(tmp_path, build([], [tensor("w", shape)], b"\0" * 1024))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (tensor("w", (32,), 0, 2**63), "end past"),
        (tensor("w", (32,), 0, 2**64 - 32), "end past"),
        (tensor("w", (32,), 0, 1024), "end past"),
        (tensor("w", (32,), 0, 928), "end past"),
        (tensor("w", (32,), 0, 16), "multiple of 32"),
        (tensor("w", (0,)), "is 0"),
        (tensor("w", (), dimensions=0), "0 dimensions"),
        (tensor("w", (1,) * 5), "5 dimensions"),
        (tensor("w", (1,), dimensions=2**32 - 1), "dimensions"),
        (tensor("w", (33,), 8), "whole number of Q8_0 blocks"),
        (tensor("w", (32,), 23), "IQ4_XS is not served"),
        (tensor("w", (32,), 4), "number 4 is not served"),
        (tensor("w", (32,), 2**32 - 1), "not served"),
        (tensor(""), "empty"),
        (tensor("a\0b"), "zero"),
        (tensor(b"\xff\xfe"), "UTF-8"),
    ],
)
def test_hostile_tensors(tmp_path: Path, record: bytes, expected: str) -> None:
    """Offsets past the end, shapes, types and names that cannot be; 1024 bytes of data follow, 896 of which are past 128."""
    header_room = 1024
    assert expected in refused(tmp_path, build([], [record], b"\0" * header_room))


def test_duplicates(tmp_path: Path) -> None:
    """A key or a tensor name that appears twice: which one counts would depend on the reader."""
    one = entry("k", U32, b"\1\0\0\0")
    assert "twice" in refused(tmp_path, build([one, one]))
    assert "twice" in refused(tmp_path, build([], [tensor("w"), tensor("w")], b"\0" * 256))


@pytest.mark.parametrize(
    "record",
    [
        entry(b"\xff", U32, b"\0" * 4),
        entry("k", STRING, text(b"\xc3")),
        entry("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("ok") + text(b"\x80")),
    ],
)
def test_bad_utf8(tmp_path: Path, record: bytes) -> None:
    """In a key, a value and a member."""
    assert "UTF-8" in refused(tmp_path, build([record]))


def test_nested_arrays(tmp_path: Path) -> None:
    """Arrays in arrays are read down to a fixed depth, and a file cannot make the reader recurse further."""

    def nested(depth: int) -> bytes:
        return struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQ", U8, 1) + b"\7"

    value = opened(tmp_path, build([entry("k", ARRAY, nested(MAX_DEPTH))])).metadata["k"]
    for _ in range(MAX_DEPTH - 1):
        value = value[0]
    assert value.tolist() == [7]
    assert "deeper" in refused(tmp_path, build([entry("k", ARRAY, nested(MAX_DEPTH + 1))]))
    assert "deeper" in refused(tmp_path, build([entry("k", ARRAY, nested(100_000))]))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (build(version=1), "version 1"),
        (build(version=4), "version 4"),
        (build(version=0), "version 0"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (build(magic=b"GGML"), "not a GGUF file"),
        (b"\x80\x04\x95" + b"x" * 64, "not a GGUF file"),
        (b"", "empty"),
        (build([entry("k", 13, b"\0" * 8)]), "type 13"),
        (build([entry("k", ARRAY, struct.pack("<IQ", 99, 1) + b"\0" * 8)]), "type 99"),
        (build([entry("k", BOOL, b"\2")]), "truth value"),
        (build([entry("k", ARRAY, struct.pack("<IQ", BOOL, 1) + b"\2")]), "truth value"),
        (build([entry("", U32, b"\0" * 4)]), "empty"),
    ],
)
def test_clear_lines(tmp_path: Path, data: bytes, expected: str) -> None:
    """What is wrong is said in words."""
    assert expected in refused(tmp_path, data)


def test_version_2_is_read(tmp_path: Path) -> None:
    """Versions 2 and 3 have one little-endian layout."""
    assert opened(tmp_path, GOOD[:4] + struct.pack("<I", 2) + GOOD[8:]).get("general.architecture", str) == "llama"


def test_element_budget(tmp_path: Path) -> None:
    """Millions of empty strings fit in few bytes of file and not in memory: the reader stops at its budget."""
    many = 5_000_000
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, many))
        file.truncate(file.tell() + 8 * many)
    with pytest.raises(ModelFileError, match="metadata elements"):
        GGUFFile.open(path)


def test_not_a_file(tmp_path: Path) -> None:
    """A folder, a missing file and a pipe with no writer are refused at once."""
    fifo = tmp_path / "pipe.gguf"
    os.mkfifo(fifo)
    for path in (tmp_path, tmp_path / "missing.gguf", fifo):
        with pytest.raises(ModelFileError, match=path.name):
            GGUFFile.open(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_mutated_files(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    """Any bytes changed: the file opens with every tensor inside it, or is a ModelFileError."""
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(ModelFileError):
        file = opened(tmp_path, bytes(data))
        for name, info in file.tensors.items():
            assert len(file.data(name)) == info.nbytes


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, len(GOOD)), stop=st.integers(0, len(GOOD)), insert=st.binary(max_size=24))
def test_spliced_files(tmp_path: Path, start: int, stop: int, insert: bytes) -> None:
    """So do files with a piece replaced by another."""
    with contextlib.suppress(ModelFileError):
        file = opened(tmp_path, GOOD[:start] + insert + GOOD[stop:])
        for name, info in file.tensors.items():
            assert len(file.data(name)) == info.nbytes


def parts(tmp_path: Path, count: int = 3, **changes: bytes) -> list[Path]:
    """A model in parts, as the format's tools split it; `changes` are other bytes for the part of that name, p1 ..."""
    paths = []
    for number in range(count):
        entries = [
            entry("split.no", 2, struct.pack("<H", number)),
            entry("split.count", 2, struct.pack("<H", count)),
            entry("split.tensors.count", I32, struct.pack("<i", count - 1)),
        ]
        if number == 0:
            entries.append(entry("general.architecture", STRING, text("llama")))
        tensors = [tensor(f"w{number}", (4,))] if number else []
        path = tmp_path / f"m-{number + 1:05d}-of-{count:05d}.gguf"
        path.write_bytes(changes.get(f"p{number}", build(entries, tensors, struct.pack("<4f", *[number] * 4) if number else b"")))
        paths.append(path)
    return paths


def test_a_model_in_parts(tmp_path: Path) -> None:
    """The first part's metadata, the tensors of all."""
    paths = parts(tmp_path)
    with GGUFFile.open(paths[0]) as file:
        assert file.files == tuple(paths) and file.size == sum(path.stat().st_size for path in paths)
        assert file.metadata["general.architecture"] == "llama" and sorted(file.tensors) == ["w1", "w2"]
        assert file.data("w2").view(np.float32).tolist() == [2, 2, 2, 2]
    assert model_files(tmp_path) == [paths[0]]


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    """Another part than the first, a missing one, one that is there twice, of another count, or under another name."""
    paths = parts(tmp_path)

    def message() -> str:
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(paths[0])
        return caught.value.message

    with pytest.raises(ModelFileError, match=r"part 2 of 3 of a model; name the first, m-00001-of-00003\.gguf"):
        GGUFFile.open(paths[1])
    whole = {path: path.read_bytes() for path in paths}
    paths[2].write_bytes(whole[paths[1]])
    assert "part 2 of 3 must be named" in message()
    paths[2].write_bytes(whole[paths[2]].replace(b"w2", b"w1"))
    assert "tensor w1 is in an earlier part too" in message()
    paths[2].write_bytes(whole[paths[2]].replace(b"split.count", b"split.cOunt"))
    assert "split.no = 2 of split.count = 1" in message()
    paths[2].unlink()
    assert "m-00003-of-00003.gguf: cannot be read" in message()
    paths[2].write_bytes(whole[paths[2]])
    paths[0].write_bytes(whole[paths[0]].replace(struct.pack("<Ii", I32, 2), struct.pack("<Ii", I32, 5)))
    assert "hold 2 tensors, not 5" in message()
    other = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"must be named \.\.\.-00001-of-00003\.gguf"):
        GGUFFile.open(other)


@pytest.mark.parametrize(("number", "count"), [(0, 0), (0, 60000), (3, 3), (60000, 3)])
def test_hostile_part_numbers(tmp_path: Path, number: int, count: int) -> None:
    """No file is looked for on their word."""
    data = build([entry("split.no", 2, struct.pack("<H", number)), entry("split.count", 2, struct.pack("<H", count))])
    refused(tmp_path, data)
