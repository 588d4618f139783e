"""`helexa bench`: loads a server, prints rates and percentiles, and compares two servers run by run."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from helexa import run_directory
from helexa.bench import plot, report, results, timing
from helexa.bench.openai_target import Load, OpenAITarget
from helexa.bench.pacing import ClosedLoop, OpenLoop, Pace
from helexa.bench.prompts import PromptMaker
from helexa.bench.timing import Metrics, Run
from helexa.bench.zmq_target import ZmqTarget
from helexa.commands import ctl
from helexa.config import Config, api_key_headers
from helexa.errors import ConfigError, StartError
from helexa.formats.checkpoint import model_path
from helexa.private_server import private_server
from helexa.web.model_text import ModelText, read_model_text

WARM_UP_REQUESTS = 4
LEAST_REQUESTS = 8
REQUESTS_A_CLIENT = 4
PRIVATE_ONLY = {"model.source": "MODEL", "cpu.threads": "--threads", "cpu.ops": "--ops"}
LONGEST_PROMPT = 2**20  # tokens


class Target(Protocol):
    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def same_length(self) -> bool: ...

    def run(self, prompts: list[str], pace: Pace) -> Run: ...

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Options:
    """What is measured; see `helexa bench --help`."""

    url: str | None
    headers: Mapping[str, str]
    versus: str | None
    versus_headers: Mapping[str, str]
    zmq: bool
    levels: list[Pace]
    requests: list[int]  # a level each
    load: Load
    input_tokens: int
    shared_prefix: int
    pairs: int
    seed: int
    json: Path | None
    png: Path | None

    @classmethod
    def of(cls, given: argparse.Namespace) -> Options:
        """Raises ConfigError for what does not go together."""
        if given.zmq and (given.url or given.vs):
            raise ConfigError("--zmq measures this machine's own helexa; leave --url and --vs out")
        if given.shared_prefix >= given.input_tokens:
            raise ConfigError("--shared-prefix must leave tokens of --input-tokens that differ")
        values = given.rate or given.concurrency
        requests = [given.requests or max(LEAST_REQUESTS, int(REQUESTS_A_CLIENT * value)) for value in values]
        levels: list[Pace] = [
            OpenLoop(value, count, given.seed) if given.rate else ClosedLoop(value)
            for value, count in zip(values, requests, strict=True)
        ]
        load = Load(given.route, given.output_tokens, given.temperature, given.shared_prefix > 0)
        return cls(
            given.url,
            api_key_headers(variable=given.api_key_env),
            given.vs,
            api_key_headers(variable=given.vs_api_key_env) if given.vs_api_key_env else {},
            given.zmq,
            levels,
            requests,
            load,
            given.input_tokens,
            given.shared_prefix,
            given.pairs,
            given.seed,
            given.json_file,
            given.png,
        )


def bench(config: Config, config_file: Path | None, flags: Mapping[str, Any], given: argparse.Namespace, out: TextIO) -> int:
    """0 when every request was answered, else 1."""
    options = Options.of(given)
    if options.png is not None:
        plot.require()
    with _first_target(config, config_file, flags, options) as (first, text):
        second = OpenAITarget(options.versus, options.load, headers=options.versus_headers) if options.versus else None
        session = _Session(options, first, second, _prompts(options, text), out)
        return session.run()


@contextmanager
def _first_target(
    config: Config, config_file: Path | None, flags: Mapping[str, Any], options: Options
) -> Iterator[tuple[Target, ModelText | None]]:
    """The server at --url, else the one that runs on the port, else a private one; and its tokenizer where it is helexa here."""
    private = [name for key, name in PRIVATE_ONLY.items() if key in flags]
    if private and (options.url or run_directory.is_served(config)):
        where = options.url or f"port {config.server.port}"
        raise ConfigError(f"{private[0]} is for a private server, and the one at {where} runs already; leave it out")
    if options.url:
        yield OpenAITarget(options.url, options.load, headers=options.headers), None
    elif run_directory.is_served(config):
        with _own_target(config, options) as target:
            yield target
    else:
        with private_server(config_file, flags) as own, _own_target(own, options) as target:
            yield target


@contextmanager
def _own_target(config: Config, options: Options) -> Iterator[tuple[Target, ModelText]]:
    models = [model for model in ctl.ask(config, "status")["models"] if model["files"]]
    if not models:
        raise StartError("the service has no model yet; try again in a moment")
    model, text = models[0]["name"], read_model_text(model_path(models[0]["files"]))
    if not options.zmq:
        yield OpenAITarget(f"http://127.0.0.1:{config.server.port}", options.load, model, options.headers), text
        return
    encode = _encoder(text)
    target = ZmqTarget(run_directory.path_for(config), model, encode, options.load.output_tokens, options.load.temperature)
    try:
        yield target, text
    finally:
        target.close()


def _encoder(text: ModelText) -> Callable[[str], list[int]]:
    """Ids of a prompt's text, without what a chat template puts around it."""
    return lambda prompt: text.encode(prompt, LONGEST_PROMPT, bos=True)


def _prompts(options: Options, text: ModelText | None) -> PromptMaker:
    encode = _encoder(text) if text is not None else None
    count = None if encode is None else lambda prompt: len(encode(prompt))
    return PromptMaker(secrets.token_hex(3), options.seed, options.input_tokens, options.shared_prefix, count)


class _Session:
    def __init__(self, options: Options, first: Target, second: Target | None, prompts: PromptMaker, out: TextIO) -> None:
        self._options = options
        self._first = first
        self._second = second
        self._prompts = prompts
        self._out = out
        self._about = results.surroundings()
        self._records: list[dict[str, Any]] = []
        self._points: dict[str, list[tuple[float, Metrics]]] = {}
        self._failures = 0

    def run(self) -> int:
        options = self._options
        for target in self._targets():
            self._print(f"{target.label}, model {target.describe()['model']}")
            if not target.same_length:
                self._print(f"  {target.kind}: not known to ignore the end of sequence, so replies may be shorter than asked for")
            target.run(self._prompts.make(WARM_UP_REQUESTS), ClosedLoop(2))
        self._print(
            f"prompts of {options.input_tokens} tokens, replies of {options.load.output_tokens}, route {options.load.route}, "
            f"temperature {options.load.temperature:g}\n"
        )
        for pace, requests in zip(options.levels, options.requests, strict=True):
            if self._second is None:
                self._single(self._first, pace, requests)
            else:
                self._pairs(self._first, self._second, pace, requests)
        self._write()
        return 1 if self._failures else 0

    def _targets(self) -> list[Target]:
        return [self._first, *([self._second] if self._second is not None else [])]

    def _single(self, target: Target, pace: Pace, requests: int) -> None:
        if not self._records:
            self._print(report.HEAD)
        metrics = self._measure(target, pace, self._prompts.make(requests), 0)
        self._print(report.line(pace.describe(), metrics))
        self._note(metrics)

    def _pairs(self, first: Target, second: Target, pace: Pace, requests: int) -> None:
        """A B, B A, A B, ...: the same prompts to both sides of a pair, new ones for each pair."""
        pairs = []
        for number in range(self._options.pairs):
            prompts = self._prompts.make(requests)
            order = [first, second] if number % 2 == 0 else [second, first]
            seen = {id(target): self._measure(target, pace, prompts, number) for target in order}
            pairs.append((seen[id(first)], seen[id(second)]))
        self._print(report.comparison(pace.describe(), first.label, second.label, len(pairs), timing.ratios(pairs)))
        cpu = [sum(metrics.client_cpu_s for metrics in side) for side in zip(*pairs, strict=True)]
        wall = [sum(metrics.wall_s for metrics in side) for side in zip(*pairs, strict=True)]
        self._print(f"  client CPU: A {cpu[0]:.2f} of {wall[0]:.1f} s, B {cpu[1]:.2f} of {wall[1]:.1f} s")
        for name, side in zip("AB", zip(*pairs, strict=True), strict=True):
            self._note(side[-1], f"{name}: ")
        self._print("")

    def _measure(self, target: Target, pace: Pace, prompts: list[str], pair: int) -> Metrics:
        run = target.run(prompts, pace)
        metrics = timing.measure(run)
        level = pace.describe()
        error = next((sample.error for sample in run.samples if sample.error), "")
        if error:
            self._print(f"  {metrics.failed} of {metrics.requests} requests to {target.label} failed; the first: {error}")
            self._failures += metrics.failed
        self._points.setdefault(target.label, []).append((next(iter(level.values())), metrics))
        self._records.append(
            {
                "kind": "bench",
                "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                **self._about,
                "target": target.describe(),
                "load": {**level, "requests": len(prompts), **self._asked()},
                "pair": pair,
                "metrics": timing.document(metrics),
            }
        )
        return metrics

    def _asked(self) -> dict[str, Any]:
        options = self._options
        return {
            "input_tokens": options.input_tokens,
            "output_tokens": options.load.output_tokens,
            "shared_prefix": options.shared_prefix,
            "temperature": options.load.temperature,
            "seed": options.seed,
        }

    def _note(self, metrics: Metrics, who: str = "") -> None:
        for note in report.notes(metrics, self._options.load.output_tokens):
            self._print(f"  {who}{note}")

    def _write(self) -> None:
        if self._options.json is not None:
            results.append(self._options.json, self._records)
        if self._options.png is not None:
            axis = next(iter(self._options.levels[0].describe()))
            plot.draw(self._options.png, {label: timing.medians(points) for label, points in self._points.items()}, axis)

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)
