"""The configuration of OpenTelemetry traces; needs the `otel` extra."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.config_types import key


@dataclass(frozen=True)
class Tracing:
    endpoint: str = key(
        "",
        'Where a span of each request is sent, as OTLP over HTTP ("http://127.0.0.1:4318/v1/traces"); empty: none is made.',
        reload="live",
    )
    sample: float = key(
        1.0, "Part of the requests that is traced, where its client did not decide.", least=0.0, most=1.0, reload="live"
    )
    service: str = key("helexa", "The name of this service in traces.", reload="live")
