"""`helexa verify`: private services with different flags, the same requests, and what differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

from helexa import devices, run_directory
from helexa.catalogue.model_shape import read_shape
from helexa.client import Client
from helexa.commands import ctl
from helexa.config import Config
from helexa.errors import ConfigError, StartError
from helexa.formats.checkpoint import model_path, open_checkpoint
from helexa.private_server import private_server, show_progress
from helexa.verify import report, settings
from helexa.verify.asks import make_asks
from helexa.verify.session import Outcome, Session
from helexa.verify.settings import Programme

FULL_ASKS, QUICK_ASKS = 64, 8
TOKENS = 24  # shortest reply; the longest has twice as many


class _Service:
    """A private service, ready. See helexa.verify.session.Running."""

    def __init__(self, config: Config, client: Client) -> None:
        self.config = config
        self._client = client

    @property
    def client(self) -> Client:
        return self._client

    def model(self) -> dict[str, Any]:
        """The one model's entry in the control socket's `status`."""
        models = ctl.ask(self.config, "status")["models"]
        if len(models) != 1 or "counters" not in models[0]:
            raise StartError("the private server has no model that answers; `helexa serve` says why")
        entry: dict[str, Any] = models[0]
        return entry

    def counters(self) -> dict[str, int]:
        return dict(self.model()["counters"])

    @property
    def ops(self) -> str:
        return str(self.model()["ops"])

    @property
    def ranks(self) -> int:
        return int(self.model()["ranks"])


def verify(
    config_file: Path | None, flags: Mapping[str, Any], *, quick: bool, self_test: bool, as_json: bool, out: TextIO
) -> int:
    """0 when nothing differs and every setting has its witness; with `self_test`, when differences were found. Else 1."""
    if self_test and "cpu.ops" in flags:
        raise ConfigError("--self-test runs the stock ops; leave --ops out")
    own = {**settings.COMMON, **flags, **({"cpu.ops": "stock"} if self_test else {})}
    table = None if as_json else out
    outcomes: list[Outcome] = []
    with _started(config_file, own, show_progress) as first:
        about = {key: first.model()[key] for key in ("name", "ops", "fingerprint")}
        programme = _programme(first, quick or self_test)
        session = Session(programme)
        _print("{name}, {ops}, {fingerprint}\n\n".format(**about) + report.HEAD, table)
        outcomes += _shown(session.service(programme.services[0], first), table)
    for service in programme.services[1:]:
        with _started(config_file, {**own, **service.flags}, _nothing) as running:
            outcomes += _shown(session.service(service, running), table)
    _print(f"\n{report.summary(outcomes)}", table)
    if as_json:
        print(json.dumps(report.document(outcomes, about, self_test), indent=1), file=out)
    elif self_test:
        print(_self_test_note(outcomes), file=out)
    return 0 if report.passed(outcomes, self_test) else 1


def _programme(service: _Service, quick: bool) -> Programme:
    model, most_ranks = service.model(), _most_ranks(service)
    asks = make_asks(QUICK_ASKS if quick else FULL_ASKS, model["vocab"], model["context"], TOKENS)
    return settings.quick(asks, most_ranks) if quick else settings.full(asks, most_ranks)


def _most_ranks(service: _Service) -> int:
    """That the model can be split over, where it runs: each takes a GPU of its own, or they share the CPU."""
    with closing(open_checkpoint(model_path(service.model()["files"]))) as file:
        most = read_shape(file).most_ranks
    config = service.config
    gpus = devices.choose(config.devices.use, config.cpu.ops)
    return min(most, len(gpus)) if gpus else most


def _shown(outcomes: Iterable[Outcome], out: TextIO | None) -> list[Outcome]:
    """Prints each as it comes."""
    seen = []
    for outcome in outcomes:
        _print(report.line(outcome), out)
        seen.append(outcome)
    return seen


def _print(text: str, out: TextIO | None) -> None:
    if out is not None:
        print(text, file=out, flush=True)


def _nothing(_: str) -> None:
    """The model is in the cache by now: no progress is worth a line."""


def _self_test_note(outcomes: list[Outcome]) -> str:
    if report.passed(outcomes, self_test=True):
        return "self-test passed: with stock linears, replies depend on their neighbours, and that was noticed"
    return "self-test failed: stock linears went unnoticed, or a setting had no witness"


@contextmanager
def _started(config_file: Path | None, flags: Mapping[str, Any], progress: Callable[[str], None]) -> Iterator[_Service]:
    with (
        private_server(config_file, flags, progress) as config,
        Client(run_directory.path_for(config), name="verify") as client,
    ):
        yield _Service(config, client)
