"""API keys through the whole service: made, used, limited, counted, revoked while it runs."""

from __future__ import annotations

import http.client
import json
import subprocess
from pathlib import Path

import pytest
from service import DEADLINE_S, Service, environment, free_port, helexa, serving

pytestmark = pytest.mark.process

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


def keys(folder: Path, *arguments: str, port: int = 1) -> tuple[int, str]:
    done = subprocess.run(
        helexa("keys", "--port", str(port), *arguments), cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def ask(service: Service, token: str, **fields: object) -> tuple[int, dict, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    connection.request("POST", "/v1/completions", json.dumps({**BODY, **fields}), headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read()), {name.lower(): value for name, value in response.getheaders()}


@pytest.fixture
def configured(tmp_path) -> Path:
    (tmp_path / "helexa.toml").write_text('[keys]\nfile = "keys.json"\n')
    return tmp_path


def test_the_keys_table(configured, tiny_model_path):
    """Rates, tokens and concurrency are 429 with Retry-After; each key is counted; a key made or revoked counts at once."""
    tokens = {
        name: keys(configured, "add", name, *limits)[1]
        for name, limits in (
            ("free", ()),
            ("twice", ("--requests-per-minute", "2")),
            ("frugal", ("--tokens-per-minute", "6")),
            ("single", ("--concurrency", "1", "--weight", "2.5")),
        )
    }
    with serving(configured, str(tiny_model_path)) as service:
        assert ask(service, "")[0] == 401 and ask(service, "hx-nobody")[0] == 401
        assert [ask(service, tokens["free"])[0] for _ in range(5)] == [200] * 5
        replies = [ask(service, tokens["twice"]) for _ in range(3)]
        assert [status for status, _, _ in replies] == [200, 200, 429]
        _, body, headers = replies[2]
        assert body["error"]["type"] == "rate_limit_error" and body["error"]["code"] == "too_many_requests"
        assert 1 <= int(headers["retry-after"]) <= 30 and headers["x-should-retry"] == "false"
        assert [ask(service, tokens["frugal"])[0] for _ in range(2)] == [200, 429]

        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
        headers = {"Content-Type": "application/json", "x-api-key": tokens["single"]}
        body = {**BODY, "max_tokens": 500, "stream": True}
        assert subprocess.run(helexa("ctl", "pause", "--port", str(service.port)), env=environment(configured)).returncode == 0
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        service.wait_for("scheduler: accepted", count=9)  # taken, and waits: the model is paused
        assert ask(service, tokens["single"])[0] == 429
        assert subprocess.run(helexa("ctl", "resume", "--port", str(service.port)), env=environment(configured)).returncode == 0
        response = connection.getresponse()
        assert response.status == 200 and response.read().rstrip().endswith(b"[DONE]")
        assert ask(service, tokens["single"])[0] == 200

        rows = {row["name"]: row for row in json.loads(keys(configured, "list", "--json", port=service.port)[1])}
        counts = {name: (row["requests"], row["refused"], row["output_tokens"]) for name, row in rows.items()}
        assert counts == {"free": (5, 0, 25), "twice": (2, 1, 10), "frugal": (1, 1, 5), "single": (2, 1, 505)}
        assert rows["single"]["weight"] == 2.5 and rows["free"]["prompt_tokens"] == 15
        listed = keys(configured, "list", port=service.port)[1]
        assert "2.5" in listed and not any(token in listed for token in tokens.values())

        late = keys(configured, "add", "late")[1]
        assert ask(service, late)[0] == 200
        assert keys(configured, "revoke", "late")[0] == 0
        assert ask(service, late)[0] == 401
        metrics = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
        metrics.request("GET", "/metrics", headers={"x-api-key": tokens["free"]})
        text = metrics.getresponse().read().decode()
        assert f'helexa_key_output_tokens_total{{key="{rows["free"]["id"]}"}} 25.0' in text
        (configured / "keys.json").chmod(0o640)
        assert ask(service, tokens["free"])[0] == 503
        service.wait_for("every request is refused")
    report = "".join(service.report)
    assert not any(token in report for token in [*tokens.values(), late])


def test_what_is_wrong_with_keys_is_said(tmp_path, configured, tiny_model_path):
    """No file named, a name twice, nobody to revoke; a service whose key file cannot be believed does not start."""
    assert keys(configured, "add", "one")[1].startswith("hx-")
    code, output = keys(configured, "add", "one")
    assert code == 1 and "already" in output
    code, output = keys(configured, "revoke", "two")
    assert code == 1 and "helexa keys list" in output
    (configured / "helexa.toml").write_text("")
    code, output = keys(configured, "list")
    assert code == 2 and "keys.file is not set" in output
    (configured / "helexa.toml").write_text('[keys]\nfile = "nowhere.json"\n')
    done = subprocess.run(
        helexa("serve", str(tiny_model_path), "--port", str(free_port())),
        cwd=configured,
        env=environment(configured),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1 and "nowhere.json" in done.stderr.splitlines()[-1] and "keys add" in done.stderr
