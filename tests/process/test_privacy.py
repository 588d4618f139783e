"""Prompts and replies never reach a log, at any level, in either format, whatever goes wrong."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from service import DEADLINE_S, Service, serving
from transcripts import bodies, run_http

pytestmark = pytest.mark.process

SECRET = "Xylophone-7731-private-words"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 40, "ignore_eos": True}
TEXT = {"model": "tiny", "prompt": SECRET, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
REQUESTS: list[tuple[str, object]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/completions", {**TEXT, "echo": True, "logprobs": 2}),
    ("/v1/messages", {**{name: CHAT[name] for name in ("model", "messages", "max_tokens")}, "system": SECRET}),
    ("/v1/responses", {"model": "tiny", "input": SECRET, "max_output_tokens": 20}),
    ("/tokenize", {"model": "tiny", "prompt": SECRET}),
    ("/v1/completions", {**TEXT, "stop": [SECRET], "user": SECRET, "metadata": {"note": SECRET}}),
    ("/v1/completions", {**TEXT, "temperature": SECRET}),
    ("/v1/completions", {**TEXT, SECRET: 1}),
    ("/v1/completions", {**TEXT, "max_tokens": 100_000}),
    ("/v1/completions", f'{{"model": "tiny", "prompt": "{SECRET}'),
    ("/v1/chat/completions", {**CHAT, "messages": [{"role": SECRET, "content": SECRET}]}),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": SECRET}}}},
    ),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "regex", "pattern": f"({SECRET}"}}),
    (f"/v1/{SECRET}", TEXT),
]


def post(service: Service, path: str, body: object) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
    data = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    return connection.getresponse().read().decode()


@pytest.mark.parametrize("form", ["text", "json"])
def test_prompts_and_replies_are_never_logged(tmp_path, tiny_model_path, form):
    """At level debug: good requests, refused ones, a worker and a scheduler that die of nothing in mid-stream."""
    with serving(tmp_path, str(tiny_model_path), "--log-level", "debug", "--log-format", form) as service:
        for path, body in REQUESTS:
            if SECRET not in path:
                post(service, path, body)
        text = json.loads(post(service, "/v1/completions", TEXT))["choices"][0]["text"]
        asked = bodies(4, prompt=SECRET)
        for role in ("worker", "scheduler"):
            transcripts = run_http(service, asked, lambda role=role: service.kill(role) and None, after_events=8)
            assert all(transcript.whole for transcript in transcripts)
        service.wait_for("done")
        report = "".join(service.report)
    assert SECRET not in report and SECRET.encode().hex() not in report
    pieces = [text[start : start + 12] for start in range(0, len(text) - 12, 12)]
    assert pieces and not [piece for piece in pieces if piece in report or json.dumps(piece)[1:-1] in report]
    ids = [str(list(SECRET.encode()))[1:15], str([byte + 3 for byte in SECRET.encode()])[1:15]]
    assert not [part for part in ids if part in report], "token ids are the prompt in other words"


def test_the_run_directory_holds_no_prompts(tmp_path, tiny_model_path):
    """Nothing of a request is written to disk while it runs."""
    with serving(tmp_path, str(tiny_model_path), "--log-level", "debug") as service:
        run_http(service, bodies(4, prompt=SECRET))
        files = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
        assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]
