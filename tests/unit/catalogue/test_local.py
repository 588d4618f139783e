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
    with pytest.raises(ModelSourceError, match=r"holds no \.gguf file"):
        catalogue.fetch(folder, offline, print)
    for name in ("b.gguf", "a.gguf"):
        write_gguf(tmp_path / "models" / name)
    assert catalogue.find(folder, offline) is None
    with pytest.raises(ModelSourceError, match=r"holds 2 \.gguf files; name one of: a\.gguf \(.*bytes\), b\.gguf \("):
        catalogue.fetch(folder, offline, print)


def test_it_is_not_the_caches(offline: Config, write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    """rm never deletes a user's own file."""
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelSourceError, match="your own file"):
        commands.rm(str(path), offline, io.StringIO())
    assert path.exists()
