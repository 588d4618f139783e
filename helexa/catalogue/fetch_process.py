"""The fetcher: `python -P -m helexa.catalogue.fetch_process`. Brings one model into the cache for the supervisor, then ends.

It leads a process group of its own: when its leash says Stop or breaks, it takes the whole group along, so that no download
outlives the service.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from helexa import catalogue, logs
from helexa import config as configuration
from helexa.errors import HelexaError
from ipc import sockets
from ipc.codec import BadMessage, decode_to_child
from ipc.leash_messages import Fetched, LastWords, Progress
from ipc.sockets import Closed, Link


def _end_with(leash: Link) -> None:
    try:
        leash.receive()
    except (Closed, BadMessage):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="helexa.catalogue.fetch_process", description="Fetches a model; the supervisor starts it."
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--leash-fd", type=int, required=True)
    options = parser.parse_args()
    config = configuration.read_generation(options.config)
    logs.set_up("fetch", config.logging.level, config.logging.format)
    leash = sockets.from_fd(options.leash_fd, decode_to_child)
    threading.Thread(target=_end_with, args=(leash,), daemon=True).start()
    try:
        source = catalogue.parse(options.source, config)
        files = catalogue.fetch(source, config, lambda line: leash.send(Progress("fetch", line)))
        leash.send(Fetched(files.files, f"{files.name} is in the cache ({files.bytes / 1e6:.0f} MB)"))
    except HelexaError as error:
        leash.send(LastWords(error.message))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
