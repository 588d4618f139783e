"""A trace of each request: when it queued, computed its prompt, and wrote. Without an endpoint there is none, and nothing is imported.

What a span says is in otel.py: counts, times and names, never text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from helexa.config_tracing import Tracing


@dataclass(frozen=True)
class Asked:
    """What is known of a request as it arrives. `parent`: its traceparent header, `state`: its tracestate header, or empty."""

    operation: str  # `chat` or `text_completion`
    model: str
    req_id: str
    parent: str = ""
    state: str = ""


@dataclass
class Times:
    """Nanoseconds since the epoch; 0: it did not come to that."""

    submitted: int = 0
    seated: int = 0
    first_output: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a request ended; `parameters` by the names that the conventions have for them after `gen_ai.request.`."""

    id: str
    model: str
    parameters: dict[str, int | float]
    times: Times
    input_tokens: int
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: Sequence[str] = ()


class Trace(Protocol):
    def ended(self, outcome: Outcome | None, error: BaseException | None) -> None:
        """Only the first call counts. `outcome` None: it was refused before it was prepared."""
        ...


class Tracer(Protocol):
    def begin(self, asked: Asked) -> Trace: ...

    def close(self) -> None:
        """Sends what is left; may take seconds."""
        ...


class NoTraces:
    """A tracer, and its every trace."""

    def begin(self, asked: Asked) -> NoTraces:
        return self

    def ended(self, outcome: Outcome | None, error: BaseException | None) -> None:
        pass

    def close(self) -> None:
        pass


def open_tracer(config: Tracing) -> Tracer:
    """Starts the thread that sends; call after any fork."""
    if not config.endpoint:
        return NoTraces()
    from helexa.web.otel import exporting

    return exporting(config)
