"""The run directory: one per port, 0700, under a lock that the supervisor holds. Sockets and the resolved config live here."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

from helexa import config as configuration
from helexa.config import Config
from helexa.errors import StartError
from ipc import endpoints

LOCK = "lock"


def path_for(config: Config) -> Path:
    return Path(config.paths.run) / str(config.server.port)


class RunDirectory:
    """Held by one process for its life; the kernel lets go when it dies."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def acquire(cls, config: Config) -> RunDirectory:
        """Creates it, takes the lock, then sweeps what a dead service left. Raises StartError."""
        path = path_for(config)
        try:
            endpoints.check_length(path)
        except ValueError as error:
            raise StartError(str(error)) from None
        for folder in (path.parent, path):
            _private_folder(folder)
        fd = _lock(path)
        if fd is None:
            raise StartError(
                f"port {config.server.port} is served by another helexa already (run directory {path}); "
                "stop it or choose another --port"
            )
        for entry in path.iterdir():
            if entry.name != LOCK:
                _remove(entry)
        return cls(path, fd)

    def write_config(self, config: Config, generation: int) -> Path:
        """config.<generation>.json, 0600; the newest counts."""
        return self._write(self.path / f"config.{generation}.json", config)

    def write_pending_config(self, config: Config) -> Path:
        """One that does not count yet."""
        target = self.path / "config.pending.json"
        target.unlink(missing_ok=True)
        return self._write(target, config)

    def _write(self, target: Path, config: Config) -> Path:
        """In one step: who looks for the newest one finds it whole."""
        unfinished = target.with_suffix(".new")
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(configuration.to_json(config))
        os.rename(unfinished, target)
        return target

    def remove(self) -> None:
        """Empties and removes the directory while the lock is still held."""
        for entry in self.path.iterdir():
            _remove(entry)
        self.path.rmdir()
        os.close(self._lock_fd)


def is_served(config: Config) -> bool:
    """Whether a living helexa holds this port's run directory."""
    path = path_for(config)
    if not (path / LOCK).exists():
        return False
    fd = _lock(path)
    if fd is None:
        return True
    os.close(fd)
    return False


def sweep(config: Config) -> None:
    """Removes the directory of a service that is dead; does nothing to a living one's."""
    path = path_for(config)
    if (path / LOCK).exists():
        fd = _lock(path)
        if fd is not None:
            RunDirectory(path, fd).remove()


def newest_config(path: Path) -> Path:
    """The config generation that counts. Raises StartError where there is none."""
    found = [entry for entry in path.glob("config.*.json") if entry.name.split(".")[1].isdigit()]
    if not found:
        raise StartError(f"{path} holds no configuration; is helexa running on this port?")
    return max(found, key=lambda entry: int(entry.name.split(".")[1]))


def _private_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise StartError(
            f"the run directory {path} cannot be made ({error.strerror}); set paths.run to a folder of yours"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StartError(f"{path} is not a folder of yours; remove it or set paths.run to another")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(path, 0o700)


def _lock(path: Path) -> int | None:
    """The locked descriptor, or None where another process holds it."""
    try:
        fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:  # its holder removed the directory between open and lock
            raise BlockingIOError
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
