"""Which of several model files a name means."""

from __future__ import annotations

import pytest

from helexa.catalogue.choice import Candidate, choose, plain_name, size
from helexa.errors import ModelSourceError

FILES = [
    Candidate("README.md", 10),
    Candidate("m-Q4_K.gguf", 4_000_000),
    Candidate("m-Q4_K_M.gguf", 4_500_000),
    Candidate("sub/m.q8_0.gguf", 8_000_000_000),
    Candidate("mmproj-m-f16.gguf", 600_000),
    Candidate("big-F16-00001-of-00002.gguf", 9_000),
]


@pytest.mark.parametrize(
    ("pick", "expected"),
    [
        ("Q4_K", "m-Q4_K.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q8_0", "sub/m.q8_0.gguf"),
        ("m.q8_0.gguf", "sub/m.q8_0.gguf"),
        ("sub/m.q8_0.gguf", "sub/m.q8_0.gguf"),
        ("mmproj-m-f16.gguf", "mmproj-m-f16.gguf"),
    ],
)
def test_one_fits(pick: str, expected: str) -> None:
    """By path, by name, or by a quantisation in any case; Q4_K is not Q4_K_M."""
    assert choose(FILES, pick, "s").path == expected


def test_the_only_one() -> None:
    """Without a pick the only model counts; a projector beside it is none."""
    assert choose([FILES[0], FILES[1], FILES[4]], "", "s").path == "m-Q4_K.gguf"


@pytest.mark.parametrize(
    ("files", "pick", "expected"),
    [
        (FILES, "", "4 models; add :FILE or :QUANT to the name, of: big-F16-00001-of-00002.gguf (9.0 kB), m-Q4_K.gguf (4.0 MB)"),
        (FILES, "Q2_K", "none fits Q2_K; add"),
        ([Candidate("a-Q4_0.gguf", 1), Candidate("b-Q4_0.gguf", 2)], "Q4_0", "2 models fit Q4_0; add"),
        (FILES, "F16", "big-F16-00001-of-00002.gguf has 2 parts, of which 1 are there"),
        (
            [Candidate("model.safetensors", 1)],
            "",
            "model.safetensors lies without config.json and tokenizer.json, which are needed",
        ),
        ([Candidate("pytorch_model.bin", 1)], "", "(pytorch_model.bin is pickled, which can run code and is not read)"),
        ([], "", "there is no .gguf and no .safetensors file; choose another source"),
    ],
)
def test_none_or_several(files: list[Candidate], pick: str, expected: str) -> None:
    """The candidates are listed with their sizes, in one line."""
    with pytest.raises(ModelSourceError) as caught:
        choose(files, pick, "some:source")
    assert (
        expected in caught.value.message and caught.value.message.startswith("some:source: ") and "\n" not in caught.value.message
    )


BESIDE = [Candidate(name, 1) for name in ("config.json", "tokenizer.json", "tokenizer_config.json")]
SHARDS = [Candidate(f"model-0000{n}-of-00002.safetensors", 5_000) for n in (1, 2)]
INDEX = Candidate("model.safetensors.index.json", 10)


def test_a_gguf_in_parts() -> None:
    """The first part stands for all of them, which come along in order."""
    parts = [Candidate(f"x/big-Q8_0-0000{n}-of-00003.gguf", n) for n in (2, 1, 3)]
    chosen = choose([*parts, Candidate("x/small-Q4_0.gguf", 9)], "Q8_0", "s")
    assert [file.bytes for file in chosen.files] == [1, 2, 3] and chosen.bytes == 6 and chosen.role == "gguf"


def test_safetensors() -> None:
    """One file, or an index and its parts, with what lies beside them; those in other folders count where they are named."""
    one = choose([Candidate("model.safetensors", 7), Candidate("onnx/model.safetensors", 7), *BESIDE], "", "s")
    assert one.role == "safetensors" and {file.path for file in one.files} == {"model.safetensors", *(b.path for b in BESIDE)}
    many = choose([*SHARDS, INDEX, *BESIDE, Candidate("README.md", 1)], "", "s")
    assert many.path == INDEX.path and len(many.files) == 6 and many.bytes == 10_013
    inside = [Candidate(f"sub/{file.path}", file.bytes) for file in (Candidate("model.safetensors", 7), *BESIDE)]
    assert choose([Candidate("model.safetensors", 7), *BESIDE, *inside], "sub/model.safetensors", "s").path == inside[0].path


def test_what_fits_is_said() -> None:
    """Both formats are listed, with their sizes and what is too large for this machine's memory."""
    files = [Candidate("m-Q4_0.gguf", 4_000_000), Candidate("model.safetensors", 16_000_000_000), *BESIDE]
    with pytest.raises(ModelSourceError) as caught:
        choose(files, "", "s", room=8_000_000_000)
    assert caught.value.message.endswith("of: m-Q4_0.gguf (4.0 MB), model.safetensors (16.0 GB, too large for this machine)")
    assert choose(files, "model.safetensors", "s", room=1).role == "safetensors"


def test_plain_names() -> None:
    """No path, hidden file or shell character survives."""
    names = ["a/b/m.gguf", "../../m.gguf", "..\\m.gguf", ".m.gguf", "m $(x);.gguf", "//", "-m.gguf"]
    assert [plain_name(name) for name in names] == ["m.gguf"] * 4 + ["m-x-.gguf", "model.gguf", "m.gguf"]


def test_sizes() -> None:
    """Three digits and a unit."""
    assert [size(n) for n in (0, 999, 1000, 98_362_432, 4_700_000_000)] == ["0 bytes", "999 bytes", "1.0 kB", "98.4 MB", "4.7 GB"]
