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
    "quant": ("model.quant", str, "quantise float weights at load: q4_0, q4_1, q5_0, q5_1, q8_0 or q4k"),
    "seats": ("admission.seats", lambda text: text if text == "auto" else int(text), "sequences that run at once"),
    "memory-mib": ("memory.limit_mib", lambda text: text if text == "auto" else int(text), "memory ceiling in MiB"),
    "threads": ("cpu.threads", lambda text: text if text == "auto" else int(text), "CPU threads"),
    "ops": ("cpu.ops", str, "auto, native or reference"),
    "device": ("devices.use", str, "where to run: auto, cpu, cuda or cuda:0,1"),
    "tensor-parallel": ("devices.tensor_parallel", int, "device workers that hold each model together, a shard each (default 1)"),
    "log-level": ("logging.level", str, "debug, info, warning or error"),
    "log-format": ("logging.format", str, "text or json"),
}
SERVICE_FLAGS = tuple(FLAGS)
CONTROL_ACTIONS = ("status", "load", "unload", "reload", "drain", "resume", "pause", "abort", "flush-cache", "log-level")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="helexa", description="A self-hosted, exact server for language models.")
    top.add_argument("--version", action="version", version=f"helexa {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    serve = _command(commands, "serve", "serve a model over HTTP and ZeroMQ", SERVICE_FLAGS)
    _model_argument(serve, "the model: an alias, scheme:name or a .gguf file (default smollm2)")
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

    preflight = _command(
        commands,
        "preflight",
        "whether a model can be served on this machine, before it is loaded; fetches it where it is not at hand",
        ("context", "memory-mib", "ops", "quant"),
    )
    _model_argument(preflight, "the model")
    preflight.add_argument(
        "--ranks", type=_whole_number, metavar="N", help="device workers that share it (default: devices.tensor_parallel)"
    )
    preflight.add_argument("--json", action="store_true", help="as JSON")
    plan = _command(
        commands,
        "plan",
        "where a model's memory goes on this machine",
        ("context", "seats", "memory-mib", "ops", "tensor-parallel"),
    )
    _model_argument(plan, "the model")
    devices = _command(commands, "devices", "the GPUs of this machine, and where a model would run", ("device",))
    devices.add_argument("--json", action="store_true", help="as JSON")
    quality = _command(
        commands,
        "quant-report",
        "what each quantisation of a model costs in quality, and saves in size and time",
        ("threads", "ops"),
    )
    _model_argument(quality, "the model")
    quality.add_argument("--text", type=Path, metavar="FILE", help="the text it is measured over (default: the Python manual)")
    quality.add_argument("--tokens", type=_whole_number, default=2000, metavar="N", help="how much of it (default 2000)")
    quality.add_argument("--quants", metavar="Q,...", help="only these (default: all that the model's float weights allow)")
    quality.add_argument("--png", type=Path, metavar="FILE", help="draw it; needs the extra `bench`")
    quality.add_argument("--json", action="store_true", help="as JSON")
    _ctl_command(commands)
    _keys_command(commands)
    completion = _command(commands, "completion", "print a completion script for bash", ())
    completion.add_argument("shell", choices=("bash",), help="source <(helexa completion bash)")
    verify = _command(
        commands, "verify", "show that replies do not depend on what else the service does; starts private servers", ("ops",)
    )
    _model_argument(verify, "the model")
    verify.add_argument("--quick", action="store_true", help="the settings that find most, with fewer requests")
    verify.add_argument("--self-test", action="store_true", help="run inexact stock linears: differences must be found")
    verify.add_argument("--json", action="store_true", help="as JSON")
    bench = _command(
        commands,
        "bench",
        "measure a server: throughput and latencies; starts a private one if none runs",
        ("port", "threads", "ops"),
    )
    _model_argument(bench, "the model of a private server")
    _bench_arguments(bench)
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


def _ctl_command(commands: Any) -> None:
    control = _command(commands, "ctl", "talk to a running service", ("port",))
    control.add_argument("action", choices=CONTROL_ACTIONS, metavar="ACTION", help=", ".join(CONTROL_ACTIONS))
    control.add_argument(
        "argument", nargs="?", metavar="X", help="MODEL of load, unload, pause, resume, flush-cache; ID of abort; LEVEL"
    )
    control.add_argument("--name", dest="load_name", metavar="NAME", help="load: the name for clients")
    control.add_argument("--json", action="store_true", help="as JSON")
    control.add_argument("--quiet", action="store_true", help="print nothing when it is done")


def _keys_command(commands: Any) -> None:
    keys = _command(commands, "keys", "API keys of a service", ("port",))
    keys.add_argument("--file", dest="keys.file", metavar="FILE", help="the key file (default: keys.file of the configuration)")
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="make a key and print it, once", description="Makes a key and prints it, once.")
    add.add_argument("key_name", metavar="NAME", help="whose it is")
    add.add_argument("--concurrency", type=_count, default=0, metavar="N", help="requests that may be open at once; 0: any")
    add.add_argument("--requests-per-minute", type=_count, default=0, metavar="N", help="0: any")
    add.add_argument("--tokens-per-minute", type=_count, default=0, metavar="N", help="of prompts and replies; 0: any")
    add.add_argument("--weight", type=_weight, default=1.0, metavar="W", help="share where keys compete (default 1)")
    listing = actions.add_parser("list", help="print the keys and their usage", description="Prints the keys and their usage.")
    listing.add_argument("--json", action="store_true", help="as JSON")
    revoke = actions.add_parser("revoke", help="take a key back", description="Takes a key back.")
    revoke.add_argument("key_name", metavar="KEY", help="its id or name")


def _bench_arguments(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--url", help="measure the server there instead")
    bench.add_argument("--vs", metavar="URL", help="another OpenAI-compatible server: runs take turns, ratios are printed")
    bench.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the API key (default: HELEXA_API_KEY, if set)"
    )
    bench.add_argument("--vs-api-key-env", metavar="NAME", help="the same for the server at --vs (default: none is sent)")
    bench.add_argument("--zmq", action="store_true", help="through the ZeroMQ client, with no HTTP")
    bench.add_argument("--concurrency", type=_whole_numbers, default=[1, 4, 8, 16], metavar="N,...", help="closed loop: clients")
    bench.add_argument("--rate", type=_rates, metavar="R,...", help="open loop instead: requests a second, at random times")
    bench.add_argument("--requests", type=_whole_number, metavar="N", help="requests a level (default: 4 a client, at least 8)")
    bench.add_argument("--input-tokens", type=_whole_number, default=109, metavar="N", help="length of a prompt (default 109)")
    bench.add_argument("--output-tokens", type=_whole_number, default=64, metavar="N", help="length of a reply (default 64)")
    bench.add_argument(
        "--shared-prefix", type=_count, default=0, metavar="N", help="tokens all prompts begin with; 0: none cached"
    )
    bench.add_argument("--route", choices=("completions", "chat"), default="completions")
    bench.add_argument("--temperature", type=float, default=0.0, help="0 (the default): the likeliest token, always")
    bench.add_argument("--pairs", type=_whole_number, default=5, metavar="N", help="runs a side and level with --vs (default 5)")
    bench.add_argument("--seed", type=_count, default=0, help="of the words and the random times")
    bench.add_argument("--json", type=Path, dest="json_file", metavar="FILE", help="append a line of JSON a run")
    bench.add_argument("--png", type=Path, metavar="FILE", help="draw the runs; needs the extra `bench`")


def _whole_number(text: str, least: int = 1) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _weight(text: str) -> float:
    weight = _rates(text)
    if len(weight) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return weight[0]


def _count(text: str) -> int:
    return _whole_number(text, least=0)


def _whole_numbers(text: str) -> list[int]:
    return [_whole_number(item) for item in text.split(",")]


def _rates(text: str) -> list[float]:
    try:
        rates = [float(item) for item in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of rates above 0")
    return rates


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
    if given.get("keys.file"):
        flags["keys.file"] = str(Path(given["keys.file"]).absolute())
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
    if options.command == "completion":
        from helexa.commands import completion

        print(completion.bash(parser()), end="")
        return 0
    if options.command == "check-config" and options.list:
        from helexa.commands import check_config

        return check_config.list_keys(sys.stdout)
    config, file, flags = resolve(options)
    if options.command == "serve":
        from helexa.commands import serve

        return serve.serve(config, file, flags)
    if options.command == "devices":
        from helexa.commands import devices

        return devices.show(config, sys.stdout, options.json)
    if options.command == "chat":
        from helexa.commands import chat

        return chat.chat(config, file, flags, options.system, sys.stdin, sys.stdout)
    if options.command == "ctl":
        from helexa.commands import ctl

        wanted = (options.action, options.argument, options.load_name)
        return ctl.run(config, *wanted, as_json=options.json, quiet=options.quiet, out=sys.stdout)
    if options.command == "keys":
        return _run_keys(config, options)
    if options.command == "bench":
        from helexa.commands import bench

        return bench.bench(config, file, flags, options, sys.stdout)
    if options.command == "verify":
        from helexa.commands import verify

        return verify.verify(file, flags, quick=options.quick, self_test=options.self_test, as_json=options.json, out=sys.stdout)
    if options.command == "preflight":
        from helexa.commands import preflight

        return preflight.preflight(config, sys.stdout, sys.stderr, as_json=options.json, ranks=options.ranks)
    if options.command == "quant-report":
        from helexa.commands import quant_report

        quants = options.quants.split(",") if options.quants else []
        measuring = quant_report.Options(options.text, options.tokens, quants, options.png, options.json)
        return quant_report.quant_report(config, measuring, sys.stdout, sys.stderr)
    if options.command == "plan":
        from helexa.commands import plan

        return plan.plan(config, sys.stdout)
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


def _run_keys(config: Config, options: argparse.Namespace) -> int:
    from helexa.commands import keys

    if options.action == "list":
        return keys.list_keys(config, options.json, sys.stdout)
    if options.action == "revoke":
        return keys.revoke(config, options.key_name, sys.stdout)
    limits = {
        "concurrency": options.concurrency,
        "requests_per_minute": options.requests_per_minute,
        "tokens_per_minute": options.tokens_per_minute,
        "weight": options.weight,
    }
    return keys.add(config, options.key_name, limits, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
