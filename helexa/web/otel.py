"""Spans by OpenTelemetry's conventions for generative AI: one a request, with one inside for each of its phases.

Names: https://opentelemetry.io/docs/specs/semconv/gen-ai/. Imported only where tracing is on: it needs the `otel` extra.
"""

from __future__ import annotations

import time
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from helexa import __version__
from helexa.config_tracing import Tracing
from helexa.web.tracing import Asked, Outcome, Times

EXPORT_TIMEOUT_S = 5.0
LONGEST_NAME = 128  # of a model, as a client gives it
PHASES = ("queued", "prefill", "decode")


def exporting(config: Tracing) -> OtelTracer:
    return OtelTracer(config, OTLPSpanExporter(endpoint=config.endpoint, timeout=EXPORT_TIMEOUT_S))


class OtelTracer:
    def __init__(self, config: Tracing, exporter: SpanExporter) -> None:
        resource = Resource.create({"service.name": config.service, "service.version": __version__})
        self._provider = TracerProvider(ParentBased(TraceIdRatioBased(config.sample)), resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("helexa", __version__)

    def begin(self, asked: Asked) -> OtelTrace:
        headers = {"traceparent": asked.parent, "tracestate": asked.state}
        context = TraceContextTextMapPropagator().extract({name: value for name, value in headers.items() if value})
        model = asked.model[:LONGEST_NAME]
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": asked.operation,
            "gen_ai.provider.name": "helexa",
            "helexa.request.id": asked.req_id,
        }
        if model:
            attributes["gen_ai.request.model"] = model
        name = f"{asked.operation} {model}".rstrip()
        return OtelTrace(self, self._tracer.start_span(name, context, SpanKind.SERVER, attributes))

    def add_phase(self, parent: Span, name: str, start: int, end: int) -> None:
        """`start`, `end` in nanoseconds since the epoch."""
        self._tracer.start_span(name, set_span_in_context(parent), start_time=start).end(end)

    def close(self) -> None:
        self._provider.shutdown()


class OtelTrace:
    def __init__(self, tracer: OtelTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._is_open = True

    def ended(self, outcome: Outcome | None, error: BaseException | None) -> None:
        if not self._is_open:
            return
        self._is_open, now = False, time.time_ns()
        if outcome is not None:
            self._span.set_attributes(_attributes(outcome))
            for name, start, end in phases(outcome.times, now):
                self._tracer.add_phase(self._span, name, start, end)
        if error is not None:
            code = str(getattr(error, "code", "client_gone"))
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR, code))
        self._span.end(now)


def phases(times: Times, end: int) -> list[tuple[str, int, int]]:
    """(name, start, end) of those that began, the last one until `end`. Pure."""
    begun = [time for time in (times.submitted, times.seated, times.first_output) if time]
    return [(name, start, stop) for name, (start, stop) in zip(PHASES, pairwise([*begun, end]), strict=False)]


def _attributes(outcome: Outcome) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {f"gen_ai.request.{name}": value for name, value in outcome.parameters.items()}
    attributes["gen_ai.response.id"] = outcome.id
    attributes["gen_ai.response.model"] = outcome.model
    attributes["gen_ai.usage.input_tokens"] = outcome.input_tokens
    if outcome.output_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = outcome.output_tokens
    if outcome.cached_tokens is not None:
        attributes["gen_ai.usage.cache_read.input_tokens"] = outcome.cached_tokens
    if outcome.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = list(outcome.finish_reasons)
    return attributes
