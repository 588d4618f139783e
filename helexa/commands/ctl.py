"""`helexa ctl`: words with a running service over its control socket (docs/operation.md)."""

from __future__ import annotations

import json
import socket
from typing import Any, TextIO

from helexa import run_directory
from helexa.commands.serve import absolute_model
from helexa.config import Config
from helexa.errors import StartError
from ipc import endpoints

TIMEOUT_S = 10.0
SLOW = ("load", "unload", "reload", "log-level")  # answered when it is done, however long that takes

# action -> (its argument, whether it may be left out)
ARGUMENTS: dict[str, tuple[str, bool]] = {
    "load": ("model", False),
    "unload": ("model", False),
    "pause": ("model", True),
    "resume": ("model", True),
    "flush-cache": ("model", True),
    "abort": ("id", False),
    "log-level": ("level", False),
}


def ask(config: Config, command: str, **arguments: str) -> dict[str, Any]:
    """The answer to one command. Raises StartError where nothing runs on the port, or it refuses."""
    path = endpoints.control_socket(run_directory.path_for(config))
    line = json.dumps({"v": 1, "cmd": command, **arguments}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(path))
            connection.sendall(line)
            connection.settimeout(None if command in SLOW else TIMEOUT_S)
            with connection.makefile("rb") as lines:
                given = lines.readline()
            reply = json.loads(given) if given else {}
        except (OSError, ValueError) as error:
            raise StartError(
                f"no helexa answers on port {config.server.port} ({path}: {error}); start it, or name its --port"
            ) from None
    if not isinstance(reply, dict) or not reply:
        raise StartError(f"the service did not answer `{command}`: its scheduler was restarted; see `helexa ctl status`")
    if not reply.get("ok"):
        raise StartError(f"the service refused `{command}`: {reply.get('error', 'no reason given')}")
    return reply


def run(config: Config, action: str, argument: str | None, name: str | None, as_json: bool, quiet: bool, out: TextIO) -> int:
    """One action, checked against what it takes. Raises StartError."""
    if action == "status":
        _take_none(action, argument, name)
        return status(config, as_json, out)
    reply = ask(config, action, **_arguments(action, argument, name))
    if as_json:
        print(json.dumps(reply, indent=1), file=out)
    elif not quiet:
        print(reply.get("note", "done"), file=out)
    return 0


def _arguments(action: str, argument: str | None, name: str | None) -> dict[str, str]:
    if action not in ARGUMENTS:
        _take_none(action, argument, name)
        return {}
    field, optional = ARGUMENTS[action]
    if argument is None:
        if not optional:
            raise StartError(f"`helexa ctl {action}` needs {'an' if field == 'id' else 'a'} {field.upper()}")
        return {}
    given = {field: absolute_model(argument) if action == "load" else argument}
    if name is not None and action != "load":
        raise StartError("--name goes with `load` alone")
    return given if name is None else {**given, "name": name}


def _take_none(action: str, argument: str | None, name: str | None) -> None:
    if argument is not None or name is not None:
        raise StartError(f"`helexa ctl {action}` takes no {'--name' if argument is None else 'argument'}")


def status(config: Config, as_json: bool, out: TextIO) -> int:
    reply = ask(config, "status")
    if as_json:
        print(json.dumps(reply, indent=1), file=out)
        return 0
    draining = ", draining" if reply["draining"] else ""
    print(f"scheduler pid {reply['pid']}, {reply['clients']} clients, configuration {reply['generation']}{draining}", file=out)
    for model in reply["models"]:
        _print_model(model, out)
    for key, usage in reply["keys"].items():
        counts = f"{usage['prompt_tokens']:,} prompt and {usage['output_tokens']:,} output tokens"
        print(f"{key}: {usage['requests']:,} requests, {usage['refused']:,} refused, {counts}", file=out)
    return 0


def _print_model(model: dict[str, Any], out: TextIO) -> None:
    words = [model["state"], *(["paused"] if model["paused"] else []), *([] if model["current"] else ["being replaced"])]
    print(f"{model['name']}: {', '.join(words)}{' - ' + model['error'] if model['error'] else ''}", file=out)
    if model["ranks"] > 1:
        print(
            f"  {model['ranks']} ranks, {'pids ' + ', '.join(map(str, model['pids'])) if model['pids'] else 'not there'}",
            file=out,
        )
    if "running" not in model:
        return
    counters = model["counters"]
    remedy = f"; {model['remedy']}" if model["remedy"] else ""
    print(
        f"  {model['running']} running, {model['waiting'] + model['held']} waiting, {model['seats']} seats; "
        f"KV blocks {model['blocks_used']:,} of {model['blocks_total']:,}\n"
        f"  {counters['requests']:,} requests, {counters['prompt_tokens']:,} prompt and "
        f"{counters['output_tokens']:,} output tokens, {counters['steps']:,} steps\n"
        f"  ops: {model['ops']}{remedy}",
        file=out,
    )
