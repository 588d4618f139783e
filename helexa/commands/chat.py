"""`helexa chat`: a conversation in the terminal, with the service that runs on the port, or with a private one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from helexa import run_directory
from helexa.config import API_KEY_VARIABLE, Config, api_key_headers
from helexa.errors import StartError
from helexa.private_server import private_server

TIMEOUT_S = 600.0


def chat(
    config: Config, config_file: Path | None, flags: Mapping[str, Any], system: str | None, lines: TextIO, out: TextIO
) -> int:
    """Reads messages from `lines` until it ends; prints the replies as they come."""
    if run_directory.is_served(config):
        return _converse(config.server.port, system, lines, out)
    with private_server(config_file, flags) as private:
        return _converse(private.server.port, system, lines, out)


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
        answer = json.loads(response.read())
    if response.status == 401:
        raise StartError(f"{answer['error']['message']}; helexa chat takes it from ${API_KEY_VARIABLE}")
    if response.status != 200:
        raise StartError(answer["error"]["message"])
    served = answer["data"]
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
        connection.request(method, path, body, {"Content-Type": "application/json", **api_key_headers()})
        yield connection.getresponse()
    except OSError as error:
        raise StartError(f"the service on port {port} does not answer ({error})") from None
    finally:
        connection.close()
