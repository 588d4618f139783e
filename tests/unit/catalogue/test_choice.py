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
        (FILES, "", "4 files; add :FILE or :QUANT to the name, of: big-F16-00001-of-00002.gguf (9.0 kB), m-Q4_K.gguf (4.0 MB)"),
        (FILES, "Q2_K", "no file fits Q2_K; add"),
        ([Candidate("a-Q4_0.gguf", 1), Candidate("b-Q4_0.gguf", 2)], "Q4_0", "2 files fit Q4_0; add"),
        (FILES, "F16", "one of 2 parts"),
        ([Candidate("model.safetensors", 1)], "", "no .gguf file (it has safetensors, which are not served)"),
        ([], "", "there is no .gguf file"),
    ],
)
def test_none_or_several(files: list[Candidate], pick: str, expected: str) -> None:
    """The candidates are listed with their sizes, in one line."""
    with pytest.raises(ModelSourceError) as caught:
        choose(files, pick, "some:source")
    assert (
        expected in caught.value.message and caught.value.message.startswith("some:source: ") and "\n" not in caught.value.message
    )


def test_plain_names() -> None:
    """No path, hidden file or shell character survives."""
    names = ["a/b/m.gguf", "../../m.gguf", "..\\m.gguf", ".m.gguf", "m $(x);.gguf", "//", "-m.gguf"]
    assert [plain_name(name) for name in names] == ["m.gguf"] * 4 + ["m-x-.gguf", "model.gguf", "m.gguf"]


def test_sizes() -> None:
    """Three digits and a unit."""
    assert [size(n) for n in (0, 999, 1000, 98_362_432, 4_700_000_000)] == ["0 bytes", "999 bytes", "1.0 kB", "98.4 MB", "4.7 GB"]
