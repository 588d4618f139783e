"""`helexa chat`: a conversation in the terminal, with the service that runs on the port, or with a private one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from helexa import run_directory
from helexa.commands.serve import GUNICORN, service_environment
from helexa.config import Config
from helexa.errors import StartError
from ipc import installation

TIMEOUT_S = 600.0


def chat(
    config: Config, config_file: Path | None, flags: Mapping[str, Any], system: str | None, lines: TextIO, out: TextIO
) -> int:
    """Reads messages from `lines` until it ends; prints the replies as they come."""
    if run_directory.is_served(config):
        return _converse(config.server.port, system, lines, out)
    with _private_server(config_file, flags) as port:
        return _converse(port, system, lines, out)


@contextmanager
def _private_server(config_file: Path | None, flags: Mapping[str, Any]) -> Iterator[int]:
    """A service of our own on a free port; it ends with the conversation."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = service_environment(
        config_file, {**flags, "server.host": "127.0.0.1", "server.port": port, "logging.level": "warning"}
    )
    server = subprocess.Popen(
        [sys.executable, *GUNICORN],
        cwd=installation.folder(),
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stderr is not None
    try:
        _wait_until_ready(server.stderr)
        yield port
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGTERM)
            os.kill(server.pid, signal.SIGTERM)  # nobody else waits for an answer: stop at once
        for line in server.stderr:  # drain, so that it can end
            if "WARNING" in line or "ERROR" in line:
                print(line, end="", file=sys.stderr)
        server.wait()


def _wait_until_ready(report: Iterable[str]) -> None:
    """Reads the start-up report; shows it while it runs, since a first start fetches the model."""
    last = ""
    for line in report:
        last = line.strip() or last
        if " ready " in line:
            print("\r\033[K" if sys.stderr.isatty() else "", end="", file=sys.stderr, flush=True)
            return
        print(
            f"\r\033[K{last[:100]}" if sys.stderr.isatty() else last,
            end="" if sys.stderr.isatty() else "\n",
            file=sys.stderr,
            flush=True,
        )
    raise StartError(f"the private server did not start: {last or 'it said nothing'}")


def _converse(port: int, system: str | None, lines: TextIO, out: TextIO) -> int:
    model = _only_model(port)
    interactive = lines.isatty()
    if interactive:
        print(f"{model}. An empty line sends nothing; Ctrl-D ends, Ctrl-C cuts a reply short.", file=out)
    messages = [{"role": "system", "content": system}] if system else []
    while True:
        if interactive:
            print("\n> ", end="", file=out, flush=True)
        try:
            line = lines.readline()
        except KeyboardInterrupt:
            return 0
        if not line:
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.rstrip("\n")})
        reply = ""
        try:
            for piece in _reply(port, {"model": model, "messages": messages, "stream": True}):
                reply += piece
                print(piece, end="", file=out, flush=True)
        except KeyboardInterrupt:
            pass
        print(file=out, flush=True)
        messages.append({"role": "assistant", "content": reply})


def _only_model(port: int) -> str:
    with _request(port, "GET", "/v1/models", None) as response:
        served = json.loads(response.read())["data"]
    if not served:
        raise StartError("the service has no model yet; try again in a moment")
    return str(served[0]["id"])


def _reply(port: int, body: Mapping[str, Any]) -> Iterator[str]:
    """The pieces of a streamed reply."""
    with _request(port, "POST", "/v1/chat/completions", json.dumps(body)) as response:
        if response.status != 200:
            raise StartError(json.loads(response.read())["error"]["message"])
        for raw in response:
            line = raw.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise StartError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                yield choice["delta"].get("content") or ""


@contextmanager
def _request(port: int, method: str, path: str, body: str | None) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        yield connection.getresponse()
    except OSError as error:
        raise StartError(f"the service on port {port} does not answer ({error})") from None
    finally:
        connection.close()
