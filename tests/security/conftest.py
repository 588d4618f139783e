"""A service under attack, with and without Python's assertions, and a check that it is the same one afterwards."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from service import DEADLINE_S, ROLES, Service, serving


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's content."""
        return json.loads(self.body)["error"]


@dataclass
class Attacked:
    """`ask` sends JSON, or bytes as they are."""

    service: Service

    def ask(self, path: str, body: Any = None, method: str = "", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=DEADLINE_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, given)
            response = connection.getresponse()
            return Answer(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()

    def refused(self, path: str, body: Any, status: int = 400, **headers: str) -> dict[str, Any]:
        answer = self.ask(path, body, **headers)
        assert answer.status == status, (answer.status, answer.body[:500])
        return answer.error

    def complete(self, **fields: Any) -> Answer:
        return self.ask("/v1/completions", {"model": "tiny", "prompt": "abc", "max_tokens": 2, "temperature": 0, **fields})

    def pids(self) -> dict[str, int]:
        return {role: self.service.pid(role) for role in ROLES}


@pytest.fixture(scope="session", params=["", "1"], ids=["plain", "python-O"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model_path) -> Iterator[Service]:
    """With "python-O" every process runs without assertions: none of them may be what keeps an attack out."""
    folder = tmp_path_factory.mktemp("attacked")
    with serving(folder, str(tiny_model_path), PYTHONOPTIMIZE=request.param) as service:
        yield service


@pytest.fixture
def attacked(service: Service) -> Iterator[Attacked]:
    """Fails when a process was lost, or answers otherwise than before."""
    attacked = Attacked(service)
    before, reply = attacked.pids(), attacked.complete(prompt="the probe", max_tokens=8, return_token_ids=True)
    yield attacked
    assert attacked.pids() == before
    again = attacked.complete(prompt="the probe", max_tokens=8, return_token_ids=True)
    assert json.loads(again.body)["choices"] == json.loads(reply.body)["choices"]
    model = service.status()["models"][0]
    assert (model["running"], model["waiting"], model["blocks_used"], model["counters"]["worker_losses"]) == (0, 0, 0, 0)
