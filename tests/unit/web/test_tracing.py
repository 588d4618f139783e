"""What a span says of a request: by the conventions' names, and never a word of its text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from helexa import extras
from helexa.config import Config
from helexa.config_tracing import Tracing
from helexa.errors import RequestError, StartError
from helexa.web.otel import OtelTracer, phases
from helexa.web.tracing import Asked, NoTraces, Outcome, Times, open_tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMES = Times(1000, 3000, 7000)
PARAMETERS = {"max_tokens": 9, "temperature": 0.5, "top_p": 1.0, "seed": 4, "choice.count": 2}
OUTCOME = Outcome("cmpl-1", "tiny", PARAMETERS, TIMES, 5, 18, 3, ["stop", "length"])


def traced(asked: Asked, outcome: Outcome | None = None, error: BaseException | None = None, **config: float):
    """The finished spans of one request, by name."""
    exporter = InMemorySpanExporter()
    tracer = OtelTracer(Tracing(endpoint="http://nowhere", **config), exporter)
    trace = tracer.begin(asked)
    trace.ended(outcome, error)
    trace.ended(None, RequestError("internal_error", "too late"))
    tracer.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_is_a_span_with_its_phases_inside():
    """Parented by the client's traceparent; queued, prefill and decode follow each other."""
    spans = traced(Asked("text_completion", "tiny", "req-1", PARENT, "a=b"), OUTCOME)
    assert set(spans) == {"text_completion tiny", "queued", "prefill", "decode"}
    root = spans["text_completion tiny"]
    assert root.kind is SpanKind.SERVER and root.status.status_code is not StatusCode.ERROR
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1] and f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    assert dict(root.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "helexa",
        "gen_ai.request.model": "tiny",
        "helexa.request.id": "req-1",
        **{f"gen_ai.request.{name}": value for name, value in PARAMETERS.items()},
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 18,
        "gen_ai.usage.cache_read.input_tokens": 3,
    }
    assert root.resource.attributes["service.name"] == "helexa"
    assert all(spans[name].parent.span_id == root.context.span_id for name in ("queued", "prefill", "decode"))
    assert [(spans[name].start_time, spans[name].end_time) for name in ("queued", "prefill")] == [(1000, 3000), (3000, 7000)]
    assert (spans["decode"].start_time, spans["decode"].end_time) == (7000, root.end_time)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (Times(), []),
        (Times(1), [("queued", 1, 9)]),
        (Times(1, 2), [("queued", 1, 2), ("prefill", 2, 9)]),
        (Times(1, 2, 3), [("queued", 1, 2), ("prefill", 2, 3), ("decode", 3, 9)]),
    ],
)
def test_a_request_that_ends_early_has_fewer_phases(times, expected):
    assert phases(times, 9) == expected


def test_an_error_is_its_code():
    """Not its message, which may quote what was asked."""
    (span,) = traced(Asked("chat", "x" * 500, "r"), None, RequestError("model_not_found", "secret words")).values()
    assert span.status.status_code is StatusCode.ERROR and span.attributes["error.type"] == "model_not_found"
    assert "secret" not in span.to_json() and len(span.attributes["gen_ai.request.model"]) == 128


def test_who_decides_what_is_sampled():
    """The client where it says so; else `tracing.sample`."""
    assert traced(Asked("chat", "m", "r"), OUTCOME, sample=0.0) == {}
    assert traced(Asked("chat", "m", "r", PARENT), OUTCOME, sample=0.0)
    assert traced(Asked("chat", "m", "r", PARENT[:-2] + "00"), OUTCOME, sample=1.0) == {}
    assert traced(Asked("chat", "m", "r", "nonsense", "more of it"), OUTCOME)


def test_off_it_costs_nothing_and_needs_nothing(monkeypatch):
    """No endpoint: no package is looked for. With one, a missing package is said before anything starts."""
    assert isinstance(open_tracer(Tracing()), NoTraces)
    extras.check(Config())
    on = Config(tracing=Tracing(endpoint="http://127.0.0.1:1/v1/traces"))
    extras.check(on)
    with pytest.raises(StartError, match="http"):
        extras.check(Config(tracing=Tracing(endpoint="ftp://x")))
    monkeypatch.setattr(extras, "find_spec", lambda name: SimpleNamespace() if name == "opentelemetry.sdk" else None)
    with pytest.raises(StartError, match="helexa\\[otel\\]"):
        extras.check(on)
    extras.check(Config())
