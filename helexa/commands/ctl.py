"""`helexa ctl`: words with a running service over its control socket."""

from __future__ import annotations

import json
import socket
from typing import Any, TextIO

from helexa import run_directory
from helexa.config import Config
from helexa.errors import StartError
from ipc import endpoints

TIMEOUT_S = 10.0


def ask(config: Config, command: str) -> dict[str, Any]:
    """The answer to one command. Raises StartError where nothing runs on the port, or it refuses."""
    path = endpoints.control_socket(run_directory.path_for(config))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(path))
            connection.sendall(json.dumps({"v": 1, "cmd": command}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                reply = json.loads(lines.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise StartError(
                f"no helexa answers on port {config.server.port} ({path}: {error}); start it, or name its --port"
            ) from None
    if not isinstance(reply, dict) or not reply.get("ok"):
        raise StartError(
            f"the service refused `{command}`: {reply.get('error', 'no answer') if isinstance(reply, dict) else reply}"
        )
    return reply


def status(config: Config, as_json: bool, out: TextIO) -> int:
    reply = ask(config, "status")
    if as_json:
        print(json.dumps(reply, indent=1), file=out)
        return 0
    print(f"scheduler pid {reply['pid']}, {reply['clients']} clients", file=out)
    for model in reply["models"]:
        print(f"{model['name']}: {model['state']}{' - ' + model['error'] if model['error'] else ''}", file=out)
        if "running" not in model:
            continue
        counters = model["counters"]
        remedy = f"; {model['remedy']}" if model["remedy"] else ""
        print(
            f"  {model['running']} running, {model['waiting']} waiting, {model['seats']} seats; "
            f"KV blocks {model['blocks_used']:,} of {model['blocks_total']:,}\n"
            f"  {counters['requests']:,} requests, {counters['prompt_tokens']:,} prompt and "
            f"{counters['output_tokens']:,} output tokens, {counters['steps']:,} steps\n"
            f"  ops: {model['ops']}{remedy}",
            file=out,
        )
    return 0
