"""The run directory: private, locked, swept."""

from __future__ import annotations

import os
import stat

import pytest

from helexa import config as configuration
from helexa import run_directory
from helexa.errors import StartError
from helexa.run_directory import RunDirectory


@pytest.fixture
def config(tmp_path):
    return configuration.load(None, {"server.port": 8123}, {"XDG_RUNTIME_DIR": str(tmp_path)})


def test_it_is_private_and_goes_with_its_holder(config):
    """0700, config 0600, nothing left after remove."""
    held = RunDirectory.acquire(config)
    assert stat.S_IMODE(os.stat(held.path).st_mode) == 0o700
    file = held.write_config(config, 1)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    held.write_config(config, 10)
    assert run_directory.newest_config(held.path).name == "config.10.json"
    assert run_directory.is_served(config)
    held.remove()
    assert not held.path.exists() and not run_directory.is_served(config)


def test_two_services_cannot_share_a_port(config):
    """The lock is taken before any bind; the message names the remedy."""
    held = RunDirectory.acquire(config)
    with pytest.raises(StartError, match="another helexa"):
        RunDirectory.acquire(config)
    run_directory.sweep(config)  # does nothing to a living one's
    assert held.path.exists()
    held.remove()


def test_what_a_dead_service_left_is_swept(config):
    """A directory whose lock nobody holds is emptied by the next holder, or removed by sweep."""
    path = run_directory.path_for(config)
    path.mkdir(parents=True)
    for name in ("lock", "requests.ipc", "config.1.json"):
        (path / name).touch()
    held = RunDirectory.acquire(config)
    assert [entry.name for entry in path.iterdir()] == ["lock"]
    os.close(held._lock_fd)
    run_directory.sweep(config)
    assert not path.exists()


def test_a_symlink_or_a_strangers_folder_is_refused(config, tmp_path):
    """The directory must be a folder of ours, not a link to one."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "helexa").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="not a folder of yours"):
        RunDirectory.acquire(config)


def test_a_path_too_long_for_a_socket_is_said(tmp_path):
    """107 bytes is the system's limit."""
    config = configuration.load(None, {"paths.run": str(tmp_path / ("x" * 120))})
    with pytest.raises(StartError, match="107"):
        RunDirectory.acquire(config)
