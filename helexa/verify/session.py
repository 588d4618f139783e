"""Runs a programme: services, settings, comparisons. Knows neither how a service is started nor how results are printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from helexa.client import Client
from helexa.verify.asks import Ask
from helexa.verify.comparison import Comparison, Transcript, compare
from helexa.verify.settings import Programme, Seen, Service, Setting

ATTEMPTS = 3  # what runs beside what is up to the clock: a setting without its witness is run again

Verdict = Literal["same", "different", "no witness", "not served"]


class Running(Protocol):
    """A service that runs."""

    @property
    def client(self) -> Client: ...

    def counters(self) -> dict[str, int]: ...

    @property
    def ops(self) -> str: ...

    @property
    def ranks(self) -> int: ...


@dataclass(frozen=True)
class Outcome:
    """What one setting showed. `baseline`: it is what the others are compared with."""

    name: str
    streams: int
    comparison: Comparison
    witness: str
    verdict: Verdict
    baseline: bool = False


class Session:
    def __init__(self, programme: Programme) -> None:
        self.programme = programme
        self._baseline: dict[int, Transcript] | None = None

    def service(self, service: Service, running: Running) -> Iterator[Outcome]:
        """Every setting of one service, which runs. The services come in the programme's order."""
        for setting in service.settings:
            yield self._setting(setting, running)

    def _setting(self, setting: Setting, running: Running) -> Outcome:
        asks = {number: self.programme.asks[number] for number in setting.asks}
        total = Comparison()
        baseline = self._baseline is None
        for _ in range(1 if baseline else ATTEMPTS):
            before = running.counters()
            observed = setting.drive(running.client, asks)
            if self._baseline is None:
                self._baseline = {stream.ask: stream.tokens for stream in observed.streams}
                total = _whole(asks, self._baseline)
            else:
                total += compare(self._baseline, observed.streams)
            after = running.counters()
            witness = setting.witness(Seen(before, after, running.ops, list(asks.values()), observed, running.ranks))
            if witness.holds or witness.not_served:
                break
        verdict: Verdict = "same"
        if total.mismatches:
            verdict = "different"
        elif not witness.holds:
            verdict = "not served" if witness.not_served else "no witness"
        if baseline and not total.mismatches:
            total = Comparison()  # nothing was compared yet
        return Outcome(setting.name, len(asks), total, witness.text, verdict, baseline)


def _whole(asks: Mapping[int, Ask], baseline: dict[int, Transcript]) -> Comparison:
    """The baseline against itself, as long as it must be: a reply cut short or without digests is a mismatch."""
    total = Comparison()
    for number, tokens in baseline.items():
        missing = asks[number].max_tokens - len(tokens) + sum(not digest for _, digest in tokens)
        total += Comparison(
            len(tokens), max(0, missing), f"request {number}: {missing} tokens or digests missing" if missing else ""
        )
    return total
