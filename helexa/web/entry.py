"""The ASGI application that gunicorn's web workers run, made from the running service's configuration."""

from __future__ import annotations

from helexa import config as configuration
from helexa import logs, run_directory
from helexa.errors import StartError
from helexa.web.app import create_app

_run_dir = run_directory.path_for(configuration.from_environment())
try:
    _config = configuration.read_generation(run_directory.newest_config(_run_dir))
except (StartError, FileNotFoundError):
    raise SystemExit(0) from None  # the service ended, and said why, before this worker had begun
logs.set_up("web", _config.logging.level, _config.logging.format)
app = create_app(_config, _run_dir)
