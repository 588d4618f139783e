"""What an operator does to a running service: its configuration file, `helexa ctl`, the control socket, plain GETs."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from pathlib import Path

from service import DEADLINE_S, Service, environment, helexa


def configured(folder: Path, model: Path, text: str = "") -> list[str]:
    """Writes helexa.toml; the model is named there, so that it can change. Returns the command line's arguments."""
    (folder / "helexa.toml").write_text(f'[model]\nsource = "{model}"\nname = "tiny"\n[cpu]\nops = "reference"\n{text}')
    return []


def ctl(folder: Path, service: Service, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        helexa("ctl", *arguments, "--port", str(service.port)),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout + done.stderr


def raw(service: Service, line: bytes) -> dict:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(str(service.run_dir / "control.sock"))
        connection.sendall(line + b"\n")
        return json.loads(connection.makefile().readline())


def get(service: Service, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode(), dict(response.getheaders())
