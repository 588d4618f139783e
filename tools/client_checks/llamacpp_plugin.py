"""pytest plugin for llama.cpp's server tests: they talk to a server that runs already. Used by llamacpp_suite.py."""

from __future__ import annotations

import os
import re
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

HOST, PORT, MODEL, KEY = (os.environ[f"EXTERNAL_{name}"] for name in ("HOST", "PORT", "MODEL", "KEY"))
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
os.environ["DEBUG_EXTERNAL"] = "1"


def pytest_configure(config: Any) -> None:
    import utils
    from llamacpp_suite import MODEL_TEXTS

    server = utils.ServerProcess
    server.server_port = property(lambda _: int(PORT), lambda _self, _value: None)
    server.server_host = property(lambda _: HOST, lambda _self, _value: None)
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    judge = utils.match_regex
    utils.match_regex = lambda regex, text: regex in MODEL_TEXTS or judge(regex, text)
    for name in ("make_request", "make_stream_request"):
        setattr(server, name, _translating(getattr(server, name)))
    _openai_package()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    from llamacpp_suite import why_not

    for item in items:
        why = why_not(item.nodeid.removeprefix("unit/"), item.get_closest_marker("slow") is not None)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def _translating(method: Any) -> Any:
    """Bodies name the model, which llama.cpp does not ask for; the native routes become those that have the same meaning here."""

    def call(self: Any, verb: str, path: str, data: Any = None, headers: Any = None, **kwargs: Any) -> Any:
        if path == "/slots":
            return SimpleNamespace(body=[{"is_processing": running() > 0}])
        if verb == "POST" and headers is None:
            headers = AUTHORIZATION
        if isinstance(data, dict) and {"messages", "prompt", "input"} & set(data):
            data = {**data, "model": MODEL}
        if path not in ("/completion", "/completions"):
            return method(self, verb, path, data, headers, **kwargs)
        if isinstance(data, dict):
            data = _openai_body(data, self.n_predict)
        answer = method(self, verb, "/v1/completions" if path == "/completion" else path, data, headers, **kwargs)
        return _translated(answer)

    return call


def _openai_body(data: dict[str, Any], server_limit: int | None) -> dict[str, Any]:
    """The native body's fields by their names at OpenAI's; `server_limit` is the option of its server that bounds every reply."""
    body = {key: value for key, value in data.items() if key not in ("cache_prompt", "n_predict")}
    limit = data.get("n_predict", server_limit)
    if limit == -1:
        body["ignore_eos"] = True
    elif limit is not None:
        body["max_tokens"] = limit
    if isinstance(body.get("logit_bias"), list):
        body["logit_bias"] = dict(body["logit_bias"])
    return body


def _translated(answer: Any) -> Any:
    """OpenAI's document, or its chunks, with the native route's names for the text and the end; a list for several prompts."""
    if not hasattr(answer, "body"):
        return (_native(chunk)[0] for chunk in answer)
    if isinstance(answer.body, dict) and answer.body.get("choices"):
        found = _native(answer.body)
        answer.body = found if len(found) > 1 else found[0]
    return answer


def _native(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document["choices"]
    return [{**document, "content": choice["text"], "stop": choice["finish_reason"] is not None} for choice in choices]


def running() -> float:
    """How many requests run, by /metrics."""
    asked = urllib.request.Request(f"http://{HOST}:{PORT}/metrics", headers=AUTHORIZATION)
    with urllib.request.urlopen(asked) as answer:
        values = re.findall(r"^vllm:num_requests_running(?:{[^}]*})? (\S+)$", answer.read().decode(), re.MULTILINE)
    assert values, "no such metric"
    return sum(map(float, values))


def _openai_package() -> None:
    """Its calls name the model, and its clients have the key unless a test gives one."""
    import openai
    import openai.resources.chat.completions as chat
    import openai.resources.completions as completions
    import openai.resources.responses as responses

    for kind in (chat.Completions, completions.Completions, responses.Responses):

        def create(self: Any, *args: Any, _create: Any = kind.create, **kwargs: Any) -> Any:
            return _create(self, *args, **{**kwargs, "model": MODEL})

        kind.create = create  # type: ignore[method-assign]

    start = openai.OpenAI.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **{**kwargs, "api_key": KEY if kwargs.get("api_key") == "dummy" else kwargs.get("api_key")})

    openai.OpenAI.__init__ = init  # type: ignore[method-assign]
