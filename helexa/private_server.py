"""A service of a command's own, on a free loopback port, for as long as the command needs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from helexa import config as configuration
from helexa.commands.serve import GUNICORN, service_environment
from helexa.config import Config
from helexa.errors import StartError
from helexa.processes import die_with_parent
from ipc import installation


def show_progress(line: str) -> None:
    """A line of the start-up report on stderr, over the last one on a terminal: a first start fetches the model. "" clears it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def private_server(
    config_file: Path | None, flags: Mapping[str, Any], progress: Callable[[str], None] = show_progress
) -> Iterator[Config]:
    """The configuration of a service that is ready; it ends with the block, or with this process however that ends. `flags` are keyed
    by path (`cpu.threads`).

    Raises StartError with the service's own last words where it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    own = {**flags, "server.host": "127.0.0.1", "server.port": port, "keys.file": "", "logging.level": "warning"}
    config = configuration.load(config_file, own)
    server = subprocess.Popen(
        [sys.executable, *GUNICORN],
        cwd=installation.folder(),
        env=service_environment(config_file, own),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    assert server.stderr is not None
    try:
        _wait_until_ready(server.stderr, progress)
        yield config
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGTERM)
            os.kill(server.pid, signal.SIGTERM)  # nobody else waits for an answer: stop at once
        for line in server.stderr:  # drain, so that it can end
            if "WARNING" in line or "ERROR" in line:
                print(line, end="", file=sys.stderr)
        server.wait()


def _wait_until_ready(report: Iterable[str], progress: Callable[[str], None]) -> None:
    last = ""
    for line in report:
        last = line.strip() or last
        if " ready " in line:
            progress("")
            return
        progress(last)
    raise StartError(f"the private server did not start: {last or 'it said nothing'}")
