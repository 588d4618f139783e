"""Holds a running service's answers to OpenAI's own description: `openai_schema.py SPEC URL MODEL`. Exit 1 if one does not fit.

SPEC is openapi.json of the public repository openai/openai-openapi. It calls itself 3.1 and still says `nullable` in places, which JSON
Schema does not know: such schemas are rewritten. The bodies that are sent make every kind of reply that the default model can be
forced to. Needs `jsonschema_rs`.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs

# (schema, where in the document a null stands): contradictions of that description with itself or with other sources
ALLOWED = {
    ("ResponseCreatedEvent", "/response/usage"): "Open Responses wants the key, null until the end; here it is an object if any",
    ("ResponseInProgressEvent", "/response/usage"): "the same",
    ("CreateCompletionResponse", "/choices/0/finish_reason"): "the schema of whole replies, which streams use too",
}

HI = [{"role": "user", "content": "Say hi."}]
PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
CHAT_TOOL = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required", "parallel_tool_calls": False}
TOOL = {"tools": [{"type": "function", **FUNCTION, "strict": False}], "tool_choice": "required", "parallel_tool_calls": False}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
CHAT_FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}}
FORMAT = {"text": {"format": {"type": "json_schema", "name": "colour", "schema": COLOUR}}}
CALLED = [
    {"role": "user", "content": "How is the weather?"},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"days": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
]

CHAT, COMPLETIONS, RESPONSES, COMPACT = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/compact"
WHOLE = {
    CHAT: "CreateChatCompletionResponse",
    COMPLETIONS: "CreateCompletionResponse",
    RESPONSES: "Response",
    COMPACT: "CompactResource",
}
CHUNKS = {CHAT: "CreateChatCompletionStreamResponse", COMPLETIONS: "CreateCompletionResponse"}
BODIES: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"max_tokens": 8},
        {"max_tokens": 8, "n": 2, "logprobs": True, "top_logprobs": 3, "service_tier": "auto", "metadata": {"a": "b"}},
        {"max_tokens": 100, **CHAT_TOOL},
        {"max_tokens": 60, **CHAT_FORMAT},
        {"max_tokens": 8, "stop": ["e"], "temperature": 0, "return_token_ids": True, "return_token_sha": True},
    ],
    COMPLETIONS: [
        {"max_tokens": 8},
        {"max_tokens": 2, "echo": True, "logprobs": 2, "temperature": 0},
        {"max_tokens": 200, "stop": ["."], "return_token_ids": True},
    ],
    RESPONSES: [
        {"max_output_tokens": 8},
        {"max_output_tokens": 8, "top_logprobs": 2, "include": ["message.output_text.logprobs"], "temperature": 0},
        {"max_output_tokens": 100, **TOOL},
        {"max_output_tokens": 60, **FORMAT, "instructions": "Be brief.", "metadata": {"a": "b"}, "safety_identifier": "u"},
        {"max_output_tokens": 16, "input": CALLED},
    ],
    COMPACT: [{"input": CALLED}],
}
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    COMPLETIONS: {"prompt": "The sky is"},
    RESPONSES: {"input": "Say hi."},
    COMPACT: {},
}
WRONG = [(CHAT, {}), (COMPLETIONS, {"prompt": "a", "best_of": 3}), (RESPONSES, {"input": "a", "previous_response_id": "resp_1"})]


class Checker:
    """Validates documents by the name of a schema, and keeps count."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._schemas = _nullable(spec["components"]["schemas"])
        self._validators: dict[str, Any] = {}
        self.events = {
            kind: name for name in _events(self._schemas) for kind in self._schemas[name]["properties"]["type"]["enum"]
        }
        self.checked = 0
        self.allowed: set[str] = set()
        self.failures: list[str] = []

    def check(self, schema: str, document: Any, what: str) -> None:
        validator = self._validators.get(schema)
        if validator is None:
            whole = {"$ref": f"#/components/schemas/{schema}", "components": {"schemas": self._schemas}}
            validator = self._validators[schema] = jsonschema_rs.Draft202012Validator(whole)
        self.checked += 1
        if schema == "CreateCompletionResponse" and _without_first(document):
            self.allowed.add(f"{schema}/choices/0/logprobs: a prompt's first token has none, so null stands first")
        for error in validator.iter_errors(document):
            place = "".join(f"/{part}" for part in error.instance_path)
            reason = ALLOWED.get((schema, place)) if error.instance is None else None
            if reason is not None:
                self.allowed.add(f"{schema}{place}: {reason}")
            else:
                self.failures.append(f"{what}: {schema}{place}: {error.message[:300]}")


def _without_first(document: dict[str, Any]) -> bool:
    """Takes the nulls of a prompt's first token out of the log probabilities; whether there were any."""
    found = False
    for choice in document["choices"]:
        scores = choice["logprobs"]
        if scores and scores["token_logprobs"][:1] == [None] and scores["top_logprobs"][:1] == [None]:
            found = True
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                scores[name].pop(0)
    return found


def _nullable(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rewritten = {key: _nullable(value) for key, value in schema.items() if key != "nullable" or isinstance(value, dict)}
    return {"anyOf": [rewritten, {"type": "null"}]} if schema.get("nullable") is True else rewritten


def _events(schemas: dict[str, Any]) -> Iterator[str]:
    for member in schemas["ResponseStreamEvent"]["anyOf"]:
        yield member["$ref"].rpartition("/")[2]


def ask(url: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def documents(stream: bytes) -> list[Any]:
    lines = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def run(checker: Checker, url: str, model: str) -> None:
    for path, bodies in BODIES.items():
        for number, fields in enumerate(bodies):
            body = {"model": model, **LEAST[path], **fields}
            status, raw = ask(url + path, body)
            assert status == 200, (path, fields, raw)
            checker.check(WHOLE[path], json.loads(raw), f"{path} {number}")
            if path == COMPACT:
                continue
            usage: dict[str, Any] = {"stream_options": {"include_usage": True}} if path in CHUNKS else {}
            status, raw = ask(url + path, {**body, "stream": True, **usage})
            assert status == 200 and documents(raw), (path, fields, raw)
            for document in documents(raw):
                checker.check(CHUNKS.get(path) or checker.events[document["type"]], document, f"{path} {number}, streamed")
    for path, fields in WRONG:
        status, raw = ask(url + path, {"model": model, **fields})
        assert status == 400, (path, fields, raw)
        checker.check("ErrorResponse", json.loads(raw), f"{path}, refused")
    checker.check("ListModelsResponse", json.loads(ask(f"{url}/v1/models")[1]), "models")
    checker.check("Model", json.loads(ask(f"{url}/v1/models/{model}")[1]), "model")
    checker.check("ErrorResponse", json.loads(ask(f"{url}/v1/models/none")[1]), "no such model")


def main() -> int:
    spec, url, model = sys.argv[1:]
    checker = Checker(json.loads(Path(spec).read_text(encoding="utf-8")))
    run(checker, url, model)
    for line in sorted(checker.allowed):
        print(f"allowed  {line}")
    for line in sorted(set(checker.failures)):
        print(f"FAIL     {line}")
    print(f"{checker.checked} documents held to OpenAI's description, {len(checker.failures)} contradictions")
    return 1 if checker.failures else 0


if __name__ == "__main__":
    sys.exit(main())
