"""`helexa serve`: check what can be checked, then become gunicorn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helexa import catalogue, devices
from helexa import config as configuration
from helexa.config import FLAGS_VARIABLE, Config
from helexa.errors import StartError
from ipc import installation

GUNICORN = ("-P", "-m", "gunicorn", "-c", "python:helexa.web.gunicorn_conf")


def absolute_model(name: str) -> str:
    """A path as given from the current folder becomes absolute, since the service runs in another."""
    if name.startswith("file:"):
        return f"file:{Path(name.removeprefix('file:')).absolute()}"
    return f"file:{Path(name).absolute()}" if name.endswith(".gguf") or (os.path.sep in name and Path(name).exists()) else name


def service_environment(config_file: Path | None, flags: Mapping[str, Any]) -> dict[str, str]:
    """The environment in which gunicorn finds the same configuration as this process."""
    extra = {FLAGS_VARIABLE: json.dumps(dict(flags))}
    if config_file is not None:
        extra["HELEXA_CONFIG"] = str(config_file.absolute())
    return configuration.child_environment(extra)


def serve(config: Config, config_file: Path | None, flags: Mapping[str, Any]) -> int:
    """Does not return when all is well. Raises HelexaError for what is wrong already now."""
    catalogue.parse(config.model.source, config)
    devices.place(devices.choose(config.devices.use, config.cpu.ops), config.devices.tensor_parallel, turn=0)
    try:
        folder = installation.folder()
    except RuntimeError as error:
        raise StartError(str(error)) from None
    environment = service_environment(config_file, flags)
    os.chdir(folder)  # gunicorn puts the current folder on its import path
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *GUNICORN], environment)
