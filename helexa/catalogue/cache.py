"""The cache of fetched models: one folder a source, with a manifest that is written last.

<cache>/models/<scheme>/<readable name>-<digest of source and endpoint>/   manifest.json, the model file
<cache>/models/<scheme>/<same>.partial/                                     a fetch in progress, or one to resume
<cache>/locks/<scheme>-<same>.lock                                          held during a fetch and a removal
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from helexa.catalogue import local
from helexa.catalogue.choice import Role, size
from helexa.catalogue.model_files import ModelFiles
from helexa.catalogue.source import Source
from helexa.config import Config
from helexa.errors import ConfigError, ModelSourceError

MANIFEST = "manifest.json"
MAX_MANIFEST = 64 * 1024


@dataclass(frozen=True)
class CachedModel:
    """An entry of the cache. `name` is what it was fetched as; `fetched` in seconds since the epoch."""

    name: str
    source: str
    path: str
    bytes: int
    licence: str
    fetched: int


@dataclass(frozen=True)
class Manifest:
    """What is kept of a fetch. `sha256` is that of the download where it is known, else empty; `file`, of `bytes` bytes, lies beside
    it, and so do `others` by name and size."""

    name: str
    source: str
    endpoint: str
    file: str
    bytes: int
    licence: str
    sha256: str
    fetched: int
    role: Role = "gguf"
    others: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.bytes + sum(self.others.values())


class Staged(NamedTuple):
    """What a fetch left in its staging folder: a model's files, and what is known of them. The first is its name."""

    paths: tuple[Path, ...]
    sha256: str
    licence: str
    role: Role = "gguf"


def place(source: Source, config: Config) -> Path:
    """The source's folder. Sources, revisions, picks and endpoints never share one."""
    endpoint = config.hub.endpoint if source.scheme == "huggingface" else ""
    digest = hashlib.blake2b(f"{endpoint}\n{source}".encode(), digest_size=6).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", str(source).partition(":")[2])[:80].strip("-.")
    return root(config) / "models" / source.scheme / f"{readable}-{digest}"


def root(config: Config) -> Path:
    if not config.paths.cache:
        raise ConfigError("`paths.cache` is empty: where models are kept is not known")
    return Path(config.paths.cache)


def find(source: Source, config: Config) -> ModelFiles | None:
    """The source's files where they are at hand: a path that exists, or an entry of the cache that is whole. No network."""
    if source.scheme == "file":
        return local.find(source)
    folder = place(source, config)
    manifest = _read(folder)
    if manifest is None or (source.sha256 and manifest.sha256 != source.sha256):
        return None
    return model_files(source.given, folder, manifest)


def model_files(name: str, folder: Path, manifest: Manifest) -> ModelFiles:
    """What is opened is a GGUF's first file, and the folder of safetensors."""
    opened = folder / manifest.file if manifest.role == "gguf" else folder
    return ModelFiles(name, manifest.source, {manifest.role: str(opened)}, manifest.total, manifest.licence)


def cached(config: Config) -> list[CachedModel]:
    """Every whole entry of the cache, by name."""
    models = []
    for path in root(config).glob(f"models/*/*/{MANIFEST}"):
        entry = _read(path.parent)
        if entry is not None and not path.parent.name.endswith(".partial"):
            opened = next(iter(model_files(entry.name, path.parent, entry).files.values()))
            models.append(CachedModel(entry.name, entry.source, opened, entry.total, entry.licence, entry.fetched))
    return sorted(models, key=lambda model: (model.name, model.source))


def remove(source: Source, config: Config) -> int:
    """Removes the source's entry and what is left of fetches; returns the bytes freed. A process that has it loaded keeps it."""
    if source.scheme == "file":
        raise ModelSourceError(f"{source} is your own file, not in the cache; delete it yourself")
    folder = place(source, config)
    with _locked(_lock_path(folder, config), wait=False) as held:
        if not held:
            raise ModelSourceError(f"{source} is being fetched by another process; end that first")
        found = [path for path in (folder, staging(folder)) if path.is_dir()]
        if not found:
            raise ModelSourceError(f"{source.given} is not in the cache; `helexa list` shows what is")
        freed = sum(tree_bytes(path) for path in found)
        for path in found:
            shutil.rmtree(path)
    return freed


def staging(folder: Path) -> Path:
    """Where a fetch collects its files."""
    return folder.with_name(folder.name + ".partial")


def install(folder: Path, manifest: Manifest) -> None:
    """Makes the staged files the entry, in one rename, with the manifest written last."""
    staged = staging(folder)
    (staged / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    staged.rename(folder)


@contextlib.contextmanager
def fetch_lock(folder: Path, config: Config, report: Callable[[str], None]) -> Iterator[None]:
    """One fetch of a source at a time, over all processes; says so when it waits."""
    path = _lock_path(folder, config)
    with _locked(path, wait=False) as held:
        if held:
            yield
            return
    report("another process fetches this model; waiting for it")
    with _locked(path, wait=True):
        yield


def need_disk(folder: Path, count: int) -> None:
    """Refuses what the disk has no room for, before it is fetched."""
    free = shutil.disk_usage(folder).free
    if count > free:
        raise ModelSourceError(f"{size(count)} are needed in {folder} and {size(free)} are free; free some, or set paths.cache")


def tree_bytes(folder: Path) -> int:
    """Bytes of the files in a tree that may be changing."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(base, name)).st_size
    return total


def _read(folder: Path) -> Manifest | None:
    """The folder's manifest, where it can be read and its files have the sizes it says."""
    try:
        with (folder / MANIFEST).open("rb") as file:
            manifest = Manifest(**json.loads(file.read(MAX_MANIFEST)))
        sizes = {manifest.file: manifest.bytes, **manifest.others}
        whole = manifest.role in ("gguf", "safetensors") and all(
            name == Path(name).name and (folder / name).stat().st_size == count for name, count in sizes.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return manifest if whole else None


def _lock_path(folder: Path, config: Config) -> Path:
    locks = root(config) / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    return locks / f"{folder.parent.name}-{folder.name}.lock"


@contextlib.contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock is held. It ends with the process, however that ends; the empty file stays."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
