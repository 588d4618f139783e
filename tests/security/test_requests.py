"""Every field, out of bounds: refused with a 400 that names it, without a trace in the processes or in anybody else's reply."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from service import DEADLINE_S

pytestmark = pytest.mark.process

NUMBERS: list[Any] = [-1, 0, 2**31, 2**63, 2**64, 1e308, "NaN", "Infinity", True, "1", [], {}]
WORDS = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "tiny", "prompt": "abc", "max_tokens": 1},
    "/v1/chat/completions": {"model": "tiny", "messages": WORDS, "max_tokens": 1},
    "/v1/responses": {"model": "tiny", "input": "abc", "max_output_tokens": 1},
    "/v1/messages": {"model": "tiny", "messages": WORDS, "max_tokens": 1},
}


def fields_of(attacked, path: str) -> dict[str, Any]:
    """Names of all fields of a route, from the server's own description."""
    described = json.loads(attacked.ask("/openapi.json").body)
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema["properties"]


@pytest.mark.parametrize("path", ROUTES)
def test_every_field_at_every_bound(attacked, path):
    """Numbers of all sizes, NaN, booleans and texts in each field: 200, or a 400 that names a field; never a 5xx."""
    fields = fields_of(attacked, path)
    assert len(fields) > 15
    for name in fields:
        for value in NUMBERS:
            raw = json.dumps({**ROUTES[path], name: value}).replace('"NaN"', "NaN").replace('"Infinity"', "Infinity")
            answer = attacked.ask(path, raw.encode())
            assert answer.status in (200, 400, 404, 422), (name, value, answer.status, answer.body[:300])
            assert answer.status == 200 or answer.error["message"], (name, value)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [259 + 1]},
        {"stop_token_ids": [2**31 - 1]},
        {"stop_token_ids": [-1]},
        {"logit_bias": {"100000": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"5": 1e308}},
        {"logit_bias": {"5": float("inf")}},
        {"prompt": [5, 10**6]},
        {"prompt": [-1]},
        {"prompt": [[5], [2**31]]},
        {"bad_words": ["a"]},
        {"allowed_token_ids": [5]},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [[]]},
        {"n": 1000},
        {"n": 2**31},
        {"best_of": 1000},
        {"logprobs": 1000},
        {"prompt_logprobs": 1000},
        {"stop": ["a"] * 1000},
        {"stop": "a" * 100_000},
        {"max_tokens": 10**9},
        {"max_tokens": 10**9, "stream": True},
        {"prompt": "a" * 5000},
        {"prompt": "a" * 5000, "stream": True},
        {"prompt_embeds": "gASVAAAAAAAAAA=="},
        {"logits_processors": ["os.system"]},
        {"custom_logit_processor": "x"},
        {"lora_path": "/etc/passwd"},
        {"cache_salt": 5},
        {"guided_decoding_backend": "x/../../y"},
    ],
    ids=lambda fields: str(fields)[:50],
)
def test_completions_refuse(attacked, fields):
    """Ids beyond the logits, empty prompts, counts without bound, embeddings and code of a client: a 400, streamed or not."""
    answer = attacked.complete(**fields)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error", answer.body[:300]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "{{ ''.__class__ }}"},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"__class__": 1}},
        {"chat_template_kwargs": {"bos_token": "x", "raise_exception": 1}},
        {"chat_template_kwargs": {"tokenize": True, "chat_template": "{{ 1 }}"}},
        {"tools": [{"type": "function", "function": {"name": f"f{index}", "parameters": {}}} for index in range(5000)]},
        {"tools": [{"type": "function", "function": {"name": "x" * 10_000}}]},
        {"tools": [{"type": "code", "code": "import os"}]},
        {"messages": [{"role": "user", "content": "a" * 100_000}]},
        {"messages": [{"role": "system"}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
        {"top_logprobs": 10_000, "logprobs": True},
    ],
    ids=lambda fields: str(fields)[:50],
)
def test_chat_refuses(attacked, fields):
    """Templates and template variables that would override the server's own, tools without number, what is no message."""
    answer = attacked.ask("/v1/chat/completions", {**ROUTES["/v1/chat/completions"], **fields})
    assert answer.status in (400, 422) and answer.error["message"], answer.body[:300]


@pytest.mark.parametrize("given", ["hello", [1.0, 2.0], [[1.0] * 7], {"x": 1}, [[[[]]]], "a" * 10_000])
def test_embeddings_of_any_shape_are_refused(attacked, given):
    """This model makes none."""
    assert attacked.ask("/v1/embeddings", {"model": "tiny", "input": given}).status == 400


# Grammars and regular expressions


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "(a+)+b"},
        {"guided_regex": "(a|a)*b"},
        {"guided_regex": "(.*a){25}"},
        {"guided_regex": "((a{1,100}){1,100}){1,100}"},
        {"guided_regex": "(" * 3000 + ")" * 3000},
        {"guided_regex": "[" * 500},
        {"guided_regex": "a{1000000}"},
        {"guided_regex": "(?<=a)b\\1"},
        {"grammar": "start: " + "(" * 2000 + '"a"' + ")" * 2000},
        {"grammar": 'start: start start | "a"'},
        {"grammar": "start: x\nx: y\ny: x"},
        {"grammar": "%import os"},
        {"guided_grammar": 'root ::= "a"' + ' | "a"' * 5000},
        {"guided_choice": ["x" * 1000] * 1000},
        {"guided_json": {"$ref": "#"}},
        {"guided_json": {"$ref": "http://127.0.0.1:1/x"}},
        {"guided_json": {"$ref": "file:///etc/passwd"}},
        {"guided_json": {"type": "object", "patternProperties": {"(a+)+b": {}}}},
        {"guided_json": {"type": "string", "pattern": "(a+)+b"}},
        {"guided_json": {"type": "array", "minItems": 10**9, "items": {"type": "integer"}}},
    ],
    ids=lambda fields: str(fields)[:50],
)
def test_a_hostile_grammar_ends(attacked, fields):
    """Compiled in a place that may be killed, run within limits: served, refused, or ended alone; the next request is served."""
    answer = attacked.complete(max_tokens=8, **fields)
    ended_alone = answer.status == 500 and "generation failed: the grammar" in answer.error["message"]
    assert answer.status in (200, 400) or ended_alone, answer.body[:300]


def test_schemas_nested_without_end_are_refused(attacked):
    """By depth, before anything recurses."""
    deep: Any = {"type": "integer"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    assert attacked.complete(guided_json=deep).status in (200, 400)
    raw = b'{"model":"tiny","prompt":"a","guided_json":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"
    assert attacked.refused("/v1/completions", raw)["code"] == "invalid_json"


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_thousands_of_different_schemas_leave_no_memory(attacked, rounds):
    """What is compiled is kept in bounded number, at the door and in the worker: however many more, both have the size of 200."""
    import psutil

    processes = [psutil.Process(attacked.service.pid(role)) for role in ("web", "worker")]

    def ask(first: int) -> None:
        for number in range(first, first + 200):
            schema = {"type": "object", "properties": {f"name{number}": {"enum": [f"{number}-{index}" for index in range(50)]}}}
            assert attacked.complete(guided_json=schema, max_tokens=1).status == 200

    ask(0)
    before = [process.memory_info().rss for process in processes]
    for number in range(1, rounds + 1):
        ask(200 * number)
    grown = [process.memory_info().rss - size for process, size in zip(processes, before, strict=True)]
    assert max(grown) < 48 * 2**20, grown


# Media: nothing is fetched on a client's word


def test_nothing_is_fetched(attacked):
    """Every spelling of an address that some parser takes for a loopback one, and files: a 400, and nobody called."""
    calls = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        places = [
            f"http://{host}:{port}/x.png" for host in ("127.0.0.1", "[::1]", "0x7f.1", "127.1", "2130706433", "localhost", "0")
        ]
        places += [f"http:\\\\127.0.0.1:{port}\\x", f"http://a@127.0.0.1:{port}/", f"http://example.com\\@127.0.0.1:{port}/x"]
        places += ["file:///etc/passwd", "/etc/passwd", "ftp://127.0.0.1/x", "data:image/png;base64,AAAA", "data:text/html,x", ""]
        for place in places:
            for part in ({"type": "image_url", "image_url": {"url": place}}, {"type": "video_url", "video_url": {"url": place}}):
                words = [{"role": "user", "content": [part, {"type": "text", "text": f"![x]({place})"}]}]
                error = attacked.refused("/v1/chat/completions", {**ROUTES["/v1/chat/completions"], "messages": words})
                assert error["code"] in ("vision_unsupported", "invalid_value", "unsupported_parameter"), error
            source = {"type": "image", "source": {"type": "url", "url": place}}
            body = {**ROUTES["/v1/messages"], "messages": [{"role": "user", "content": [source]}]}
            assert attacked.ask("/v1/messages", body).status == 400
            text = f"![x]({place}) <img src='{place}'>"
            assert attacked.complete(prompt=text[:200]).status == 200
        try:
            calls.append(listener.accept())
        except TimeoutError:
            pass
    assert calls == []


def test_images_are_not_decoded(attacked):
    """This model sees nothing: one pixel, 50,000 x 50,000 of them, a bomb: refused for what they are, unread."""
    for data in ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB", "iVBORw0KGgoAAAANSUhEUgAAw1AAAMNQ", "H4sIAAAAAAAA" * 1000):
        for kind in ("png", "jpeg", "gif", "webp", "tiff", "fits", "svg+xml"):
            part = {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}
            body = {**ROUTES["/v1/chat/completions"], "messages": [{"role": "user", "content": [part]}]}
            assert attacked.refused("/v1/chat/completions", body)["code"] == "vision_unsupported"


# Names

NAMES = [
    "../x",
    "../../../../etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/etc/passwd",
    "file:/etc/passwd",
    "x\0y",
    "x" * 10_240,
    "..",
    "",
]
NAMES += [
    "pypi:requests@2.0",
    "huggingface:a/b",
    "tiny\n",
    "tiny/../tiny",
    "~root",
    "http://127.0.0.1/x",
    "\\\\host\\share",
    "tiny.gguf",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:30])
def test_a_model_is_named_from_the_registry_alone(attacked, name):
    """Paths, sources and their encodings are names that nobody has: 404, or 400 for what can be no name."""
    for path, body in ROUTES.items():
        answer = attacked.ask(path, {**body, "model": name})
        assert answer.status in (400, 404), (path, answer.body[:200])
        assert "root:" not in answer.body.decode() and "/etc" not in answer.error["message"].replace(name, "")


@pytest.mark.parametrize(
    "path", ["../x", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "%00", "%ff%fe", "x" * 2000, "..%5c..%5cx"]
)
def test_a_path_leads_nowhere(attacked, path):
    """Nothing under /v1/models is a file."""
    answer = attacked.ask(f"/v1/models/{path}")
    assert answer.status in (400, 403, 404) and b"root:" not in answer.body


def test_a_flood_of_hostile_requests_beside_a_stream(attacked):
    """Out-of-range ids, biases and rules of others, all at once, never change a neighbour's tokens."""
    body = {"prompt": "neighbour", "max_tokens": 100, "ignore_eos": True, "seed": 3, "temperature": 0.9, "return_token_ids": True}
    calm = json.loads(attacked.complete(**body).body)["choices"]
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            for fields in (
                {"logit_bias": {"5": -100, "7": 100}},
                {"stop_token_ids": [300]},
                {"guided_regex": "(a+)+b"},
                {"n": 99},
            ):
                attacked.complete(temperature=2, seed=3, frequency_penalty=2, **fields)

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert json.loads(attacked.complete(**body).body)["choices"] == calm
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE_S)
