"""`helexa`: the command line. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from helexa import __version__
from helexa import config as configuration
from helexa.config import Config
from helexa.errors import ConfigError, HelexaError

MACHINES = ("x86_64", "aarch64")

# flag -> configuration key
FLAGS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "host": ("server.host", str, "address to listen on"),
    "port": ("server.port", int, "TCP port (default 8000)"),
    "web-workers": ("server.web_workers", int, "web worker processes"),
    "name": ("model.name", str, "model name for clients"),
    "context": ("model.context", int, "longest prompt + output, in tokens"),
    "seats": ("admission.seats", lambda text: text if text == "auto" else int(text), "sequences that run at once"),
    "memory-mib": ("memory.limit_mib", lambda text: text if text == "auto" else int(text), "memory ceiling in MiB"),
    "threads": ("cpu.threads", lambda text: text if text == "auto" else int(text), "CPU threads"),
    "ops": ("cpu.ops", str, "auto, native or reference"),
    "log-level": ("logging.level", str, "debug, info, warning or error"),
    "log-format": ("logging.format", str, "text or json"),
}
SERVICE_FLAGS = tuple(FLAGS)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="helexa", description="A self-hosted, exact server for language models.")
    top.add_argument("--version", action="version", version=f"helexa {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", "serve a model over HTTP and ZeroMQ", SERVICE_FLAGS)
    _model_argument(serve, "the model: an alias, scheme:name or a .gguf file (default smollm2)")
    serve.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run; this version has CPU ops only"
    )
    chat = _command(
        commands, "chat", "chat in the terminal; starts a private server if none runs", ("port", "context", "threads", "ops")
    )
    _model_argument(chat, "the model of a private server")
    chat.add_argument("--system", help="the system message")

    pull = _command(commands, "pull", "fetch a model into the cache", ())
    _model_argument(pull, "the model")
    listing = _command(commands, "list", "the models in the cache", ())
    listing.add_argument("--json", action="store_true", help="as JSON")
    show = _command(commands, "show", "one model of the cache", ())
    _model_argument(show, "the model")
    remove = _command(commands, "rm", "remove a model from the cache", ())
    _model_argument(remove, "the model")

    control = _command(commands, "ctl", "talk to a running service", ("port",))
    control.add_argument("action", choices=("status",), help="status: models, sequences, memory, counters")
    control.add_argument("--json", action="store_true", help="as JSON")
    check = _command(commands, "check-config", "check helexa.toml", SERVICE_FLAGS)
    check.add_argument("--list", action="store_true", help="print every key with its default and documentation")
    return top


def _command(commands: Any, name: str, text: str, flags: Sequence[str]) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    command.add_argument("--config", metavar="FILE", help="helexa.toml to use (default: ./helexa.toml, then the user's own)")
    command.add_argument("--offline", action="store_true", help="never use the network")
    for flag in flags:
        key, convert, help_text = FLAGS[flag]
        command.add_argument(f"--{flag}", type=convert, dest=key, metavar="X", help=help_text)
    return command


def _model_argument(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("model", nargs="?", metavar="MODEL", help=text)


def resolve(options: argparse.Namespace) -> tuple[Config, Path | None, dict[str, Any]]:
    """(configuration, its file, the flags that shaped it)."""
    from helexa.commands.serve import absolute_model

    given = vars(options)
    flags = {key: given[key] for key, _, _ in FLAGS.values() if given.get(key) is not None}
    if given.get("model"):
        flags["model.source"] = absolute_model(given["model"])
    if options.offline:
        flags["offline"] = True
    file = configuration.find_file(options.config)
    return configuration.load(file, flags), file, flags


def main(arguments: Sequence[str] | None = None) -> int:
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        print(
            f"helexa: runs on Linux (x86_64 or aarch64; WSL2 counts), not on {platform.system()} {platform.machine()}",
            file=sys.stderr,
        )
        return 2
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except ConfigError as error:
        print(f"helexa: {error.message}", file=sys.stderr)
        return 2
    except HelexaError as error:
        print(f"helexa: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


def run(options: argparse.Namespace) -> int:
    """One command; imports no more than it needs."""
    if options.command == "check-config" and options.list:
        from helexa.commands import check_config

        return check_config.list_keys(sys.stdout)
    config, file, flags = resolve(options)
    if options.command == "serve":
        from helexa.commands import serve

        if options.device == "cuda":
            raise ConfigError("--device cuda: this version of helexa has CPU ops only; leave the flag out")
        return serve.serve(config, file, flags)
    if options.command == "chat":
        from helexa.commands import chat

        return chat.chat(config, file, flags, options.system, sys.stdin, sys.stdout)
    if options.command == "ctl":
        from helexa.commands import ctl

        return ctl.status(config, options.json, sys.stdout)
    if options.command == "check-config":
        from helexa.commands import check_config

        return check_config.check(config, file, sys.stdout)
    from helexa.catalogue import commands

    if options.command == "pull":
        return commands.pull(config.model.source, config, sys.stdout)
    if options.command == "list":
        return commands.list_models(config, sys.stdout, as_json=options.json)
    if options.command == "show":
        return commands.show(config.model.source, config, sys.stdout)
    return commands.rm(config.model.source, config, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
