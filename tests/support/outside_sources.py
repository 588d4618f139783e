"""Data that come with an outside implementation's sources: vocabularies with texts and their ids, and chat templates.

The sources are fetched once, into the cache that model files are in; nothing of them is part of this project, and nothing of them is
run.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from helexa import config as configuration

NAME, VERSION = "llama_cpp_python", "0.3.36"
NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Max retries exceeded",
)


@functools.cache
def outside_data() -> Path:
    """The folder of the data, fetched where it is not there. Skips where there is no network, and for no other reason."""
    folder = Path(configuration.load(None, {}).paths.cache) / "test-data" / f"{NAME}-{VERSION}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--quiet", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{NAME}=={VERSION}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = list(folder.glob("*.tar.gz"))  # it lies there even where pip cannot build what it needs to read its metadata
        if not archives:
            if any(sign in result.stderr for sign in NO_NETWORK):
                pytest.skip("no network, and the data are not in the cache")
            raise AssertionError(result.stderr)
        _unpack(archives[0], folder)
        archives[0].unlink()
        (folder / "complete").touch()
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        for member in opened:
            path = Path(member.name)
            vocabulary = path.parent.name == "models" and path.name.startswith("ggml-vocab-")
            template = path.parent.name == "templates" and path.suffix == ".jinja"
            if member.isfile() and (vocabulary or template):
                member.name = path.name
                opened.extract(member, folder, filter="data")
