"""Who can reach the service, and whether they need a key: looked at before anything starts."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from helexa.config import Config
from helexa.keys import key_file


def check(config: Config) -> str:
    """A warning for people, or "". Raises KeyFileError where the key file cannot be believed."""
    if config.keys.file:
        key_file.load(Path(config.keys.file))
        return ""
    host = config.server.host
    if is_loopback(host):
        return ""
    return (
        f"WARNING: LISTENING ON {host}:{config.server.port} WITHOUT API KEYS: WHOEVER REACHES THIS ADDRESS CAN USE THE SERVER. "
        "Make keys with `helexa keys add NAME` and name their file in keys.file, or listen on 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
