"""Packages that only some configurations need."""

from __future__ import annotations

from importlib.util import find_spec

from helexa.config import Config
from helexa.errors import StartError

TRACING = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check(config: Config) -> None:
    """Raises StartError where one is missing."""
    if config.tracing.endpoint and not all(_is_there(name) for name in TRACING):
        raise StartError(
            "tracing.endpoint is set, but OpenTelemetry is not installed: pip install 'helexa[otel]', or leave it empty"
        )
    if config.tracing.endpoint and not config.tracing.endpoint.startswith(("http://", "https://")):
        raise StartError(f"tracing.endpoint = {config.tracing.endpoint!r}: not an address of http:// or https://")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
