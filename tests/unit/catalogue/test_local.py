"""The file source."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from helexa import catalogue
from helexa.catalogue import commands
from helexa.config import Config
from helexa.errors import ModelSourceError


def test_a_file_and_a_folder(offline: Config, write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """A path is used where it lies, offline too; a folder stands for the one model in it."""
    path = write_gguf(tmp_path / "models" / "m.gguf")
    for name in (str(path), f"file:{path}", str(path.parent), f"file:{path.parent}"):
        source = catalogue.parse(name, offline)
        files = catalogue.fetch(source, offline, print)
        assert files.files == {"gguf": str(path)} and files.bytes == path.stat().st_size and files.name == name
        assert catalogue.find(source, offline) == files
    out = io.StringIO()
    assert commands.show(str(path), offline, out) == 0 and "licence        mit" in out.getvalue()
    assert not Path(offline.paths.cache).exists()


def test_what_is_not_there(offline: Config, write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """No file, an empty folder, and a folder of several, which are listed with sizes."""
    missing = catalogue.parse(str(tmp_path / "no.gguf"), offline)
    assert catalogue.find(missing, offline) is None
    with pytest.raises(ModelSourceError, match=r"no\.gguf: no such file; name a \.gguf file"):
        catalogue.fetch(missing, offline, print)
    folder = catalogue.parse(f"file:{tmp_path}/models", offline)
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelSourceError, match=r"holds no \.gguf and no \.safetensors file; name one"):
        catalogue.fetch(folder, offline, print)
    for name in ("b.gguf", "a.gguf"):
        write_gguf(tmp_path / "models" / name)
    assert catalogue.find(folder, offline) is None
    with pytest.raises(ModelSourceError, match=r"holds 2 models; name one of: a\.gguf \(.*bytes\), b\.gguf \("):
        catalogue.fetch(folder, offline, print)


def test_safetensors(offline: Config, write_folder: Callable[..., Path], tmp_path: Path) -> None:
    """A folder of them, sharded or not, is opened as a folder; one file by itself, with what lies beside it."""
    folder = write_folder(tmp_path / "Model-0.6B")
    source = catalogue.parse(str(folder), offline)
    files = catalogue.fetch(source, offline, print)
    assert files.files == {"safetensors": str(folder)} and source.served_name == "Model-0.6B"
    assert files.bytes == sum(path.stat().st_size for path in folder.iterdir())
    one = catalogue.find(catalogue.parse(str(folder / "model.safetensors"), offline), offline)
    assert one is not None and one.files == {"safetensors": str(folder / "model.safetensors")}
    sharded = write_folder(tmp_path / "sharded", shards=3)
    assert catalogue.fetch(catalogue.parse(f"file:{sharded}", offline), offline, print).files == {"safetensors": str(sharded)}
    out = io.StringIO()
    assert commands.show(str(sharded), offline, out) == 0
    assert "3 F32" in out.getvalue() and "architecture   llama" in out.getvalue() and "parameters     192" in out.getvalue()


def test_folders_that_are_not_one_model(
    offline: Config, write_gguf: Callable[..., Path], write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Mixed formats are listed; a missing tokenizer, and weights that are pickled, are named."""
    mixed = write_folder(tmp_path / "mixed")
    write_gguf(mixed / "m.gguf")
    assert catalogue.find(catalogue.parse(str(mixed), offline), offline) is None
    with pytest.raises(ModelSourceError, match=r"holds 2 models; name one of: m\.gguf \(.*, model\.safetensors \("):
        catalogue.fetch(catalogue.parse(str(mixed), offline), offline, print)
    bare = write_folder(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(ModelSourceError, match=r"model\.safetensors lies without tokenizer\.json, which are needed"):
        catalogue.fetch(catalogue.parse(str(bare), offline), offline, print)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelSourceError, match=r"pytorch_model\.bin is pickled"):
        catalogue.fetch(catalogue.parse(str(pickled), offline), offline, print)


def test_it_is_not_the_caches(offline: Config, write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """rm never deletes a user's own file."""
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelSourceError, match="your own file"):
        commands.rm(str(path), offline, io.StringIO())
    assert path.exists()
