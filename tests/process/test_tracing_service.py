"""A service that is traced: what a collector gets of its requests."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from service import DEADLINE_S, Service, free_port, helexa, launch, serving
from transcripts import bodies, run_http, stream

pytestmark = pytest.mark.process

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector:
    def __init__(self) -> None:
        self.raw: list[bytes] = []

    def spans(self) -> list[dict]:
        """Of all that came: name, trace, own and parent's ids, attributes, nanoseconds it took."""
        messages = [ExportTraceServiceRequest.FromString(data) for data in self.raw]
        scopes = [scope for message in messages for resource in message.resource_spans for scope in resource.scope_spans]
        return [
            {
                "name": span.name,
                "trace": span.trace_id.hex(),
                "id": span.span_id,
                "parent": span.parent_span_id,
                "attributes": {item.key: item.value for item in span.attributes},
                "took": span.end_time_unix_nano - span.start_time_unix_nano,
            }
            for scope in scopes
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.raw.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector, f"http://127.0.0.1:{server.server_port}/v1/traces"
        finally:
            server.shutdown()
            thread.join()


def ask(service: Service, path: str, body: dict, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def traced(folder: Path, endpoint: str) -> Path:
    (folder / "helexa.toml").write_text(f'[tracing]\nendpoint = "{endpoint}"\nservice = "mine"\n')
    return folder


def test_every_request_has_a_span_and_no_span_has_its_text(tmp_path, tiny_model_path):
    """Whole, streamed, refused: counts, times and names; sent at the latest when the service stops."""
    words = "a very secret prompt"
    with collecting() as (collector, endpoint):
        with serving(traced(tmp_path, endpoint), str(tiny_model_path)) as service:
            chat = {"model": "tiny", "messages": [{"role": "user", "content": words}], "max_tokens": 4, "stop": ["secret stop"]}
            assert ask(service, "/v1/chat/completions", chat, traceparent=PARENT) == 200
            assert stream(service.port, {**bodies(1, tokens=20)[0], "prompt": words}).whole
            assert ask(service, "/v1/completions", {"model": "nobody", "prompt": words}) == 404
            assert service.stop() == 0
        spans = collector.spans()
    roots = {span["name"]: span for span in spans if span["name"] not in ("queued", "prefill", "decode")}
    assert set(roots) == {"chat tiny", "text_completion tiny", "text_completion nobody"}
    assert roots["chat tiny"]["trace"] == PARENT.split("-")[1] and roots["chat tiny"]["parent"].hex() == PARENT.split("-")[2]
    attributes = roots["text_completion tiny"]["attributes"]
    assert attributes["gen_ai.usage.output_tokens"].int_value == 20
    assert attributes["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "length"
    assert roots["text_completion nobody"]["attributes"]["error.type"].string_value == "model_not_found"
    for root in (roots["chat tiny"], roots["text_completion tiny"]):
        inside = {span["name"]: span for span in spans if span["parent"] == root["id"]}
        assert set(inside) == {"queued", "prefill", "decode"}
        assert sum(span["took"] for span in inside.values()) <= root["took"]
    assert not any(b"secret" in data for data in collector.raw)


def test_a_collector_that_is_gone_holds_nothing_up(tmp_path, tiny_model_path):
    """Nobody listens there: streams are as without tracing, and the service stops as ever."""
    asked = bodies(4, tokens=40)
    with serving(tmp_path, str(tiny_model_path)) as service:
        expected = run_http(service, asked)
    with serving(traced(tmp_path, f"http://127.0.0.1:{free_port()}/v1/traces"), str(tiny_model_path)) as service:
        assert run_http(service, asked) == expected
        assert service.stop() == 0


def test_an_address_that_is_none_stops_the_start(tmp_path, tiny_model_path):
    traced(tmp_path, "localhost:4318")
    service = launch(tmp_path, free_port(), helexa("serve", str(tiny_model_path)))
    assert service.wait() == 1
    service.wait_for("tracing.endpoint")
