"""The table of request fields: every row does what its class says, and people are told the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helexa.errors import RequestError
from helexa.web.wire import (
    anthropic_messages,
    fields,
    openai_chat,
    openai_compact,
    openai_completions,
    openai_embeddings,
    openai_responses,
    tables,
    tokens,
)

ROOT = Path(__file__).parents[3]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
COMPACT, EMBEDDINGS = "/v1/responses/compact", "/v1/embeddings"
MESSAGES, COUNT, TOKENIZE, DETOKENIZE = "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"
PARSERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    CHAT: openai_chat.parse,
    COMPLETIONS: openai_completions.parse,
    RESPONSES: openai_responses.parse,
    COMPACT: openai_compact.parse,
    EMBEDDINGS: openai_embeddings.parse,
    MESSAGES: anthropic_messages.parse,
    COUNT: anthropic_messages.parse_count,
    TOKENIZE: tokens.parse_tokenize,
    DETOKENIZE: tokens.parse_detokenize,
}
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": HI},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    RESPONSES: {"model": "m", "input": "hi"},
    COMPACT: {"model": "m", "input": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "messages": HI, "max_tokens": 5},
    COUNT: {"model": "m", "messages": HI},
    TOKENIZE: {"prompt": "hi"},
    DETOKENIZE: {"tokens": [1]},
}
ROWS = [(endpoint, field) for endpoint, table in tables.ALL.items() for field in table]
NAMES = [f"{endpoint}-{field.name}" for endpoint, field in ROWS]
STRANGE: list[Any] = [{"x": 1}, [{}], "\u0000nonsense", -(2**70), 1e300, True, [[]], 2**63, -1, 0.5]

F = {"type": "function", "function": {"name": "f"}}
A = {"name": "f", "input_schema": {"type": "object"}}
FLAT = {"type": "function", "name": "f"}
SCHEMA = {"type": "object"}

# For each acting field two values that must give different requests, with what they need beside them. Keys may name an endpoint.
DIFFERENT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "model": ("m", "other", {}),
    "stream": (False, True, {}),
    "stream_options": ({"include_usage": False}, {"include_usage": True}, {"stream": True}),
    "max_tokens": (1, 2, {}),
    "max_completion_tokens": (1, 2, {}),
    "max_output_tokens": (1, 2, {}),
    "min_tokens": (0, 2, {}),
    "temperature": (0, 1.5, {}),
    "top_p": (1, 0.5, {}),
    "top_k": (0, 5, {}),
    "min_p": (0, 0.5, {}),
    "presence_penalty": (0, 1, {}),
    "frequency_penalty": (0, 1, {}),
    "repetition_penalty": (1, 1.5, {}),
    "logit_bias": ({}, {"5": -100}, {}),
    "seed": (1, 2, {}),
    "n": (1, 2, {}),
    "stop": ([], ["a", "b"], {}),
    "stop_sequences": ([], ["a", "b"], {}),
    "stop_token_ids": ([], [5], {}),
    "ignore_eos": (False, True, {}),
    "priority": ("interactive", "background", {}),
    "cache_salt": ("a", "b", {}),
    "return_token_ids": (False, True, {}),
    "return_token_sha": (False, True, {}),
    "messages": (HI, [{"role": "user", "content": "b"}], {}),
    f"{TOKENIZE} messages": (HI, [{"role": "user", "content": "b"}], {"prompt": None}),
    "top_logprobs": (1, 2, {"logprobs": True}),
    f"{RESPONSES} top_logprobs": (1, 2, {}),
    "logprobs": (False, True, {}),
    f"{COMPLETIONS} logprobs": (1, 2, {}),
    "prompt": ("a", "b", {}),
    "content": ("a", "b", {"prompt": None}),
    "echo": (False, True, {}),
    "structured_outputs": ({"regex": "a"}, {"choice": ["a"]}, {}),
    "guided_json": (SCHEMA, {"type": "array"}, {}),
    "guided_regex": ("a", "b", {}),
    "guided_choice": (["a"], ["b"], {}),
    "guided_grammar": ("a", "b", {}),
    "grammar": ("", "b", {}),
    "json_schema": (SCHEMA, '{"type": "array"}', {}),
    "response_format": ({"type": "text"}, {"type": "json_object"}, {}),
    "tools": ([], [F], {}),
    f"{MESSAGES} tools": ([], [A], {}),
    f"{COUNT} tools": ([], [A], {}),
    f"{RESPONSES} tools": ([], [FLAT], {}),
    f"{TOKENIZE} tools": ([], [F], {"prompt": None, "messages": HI}),
    "tool_choice": ("auto", "required", {"tools": [F]}),
    f"{MESSAGES} tool_choice": ({"type": "auto"}, {"type": "any"}, {"tools": [A]}),
    f"{COUNT} tool_choice": ({"type": "auto"}, {"type": "none"}, {"tools": [A]}),
    f"{RESPONSES} tool_choice": ("auto", {"type": "function", "name": "f"}, {"tools": [FLAT]}),
    "parallel_tool_calls": (True, False, {"tools": [F]}),
    f"{RESPONSES} parallel_tool_calls": (True, False, {"tools": [FLAT]}),
    "reasoning_effort": ("low", "high", {}),
    "thinking_budget": (0, 5, {}),
    "chat_template_kwargs": ({}, {"enable_thinking": False}, {}),
    f"{TOKENIZE} chat_template_kwargs": ({}, {"enable_thinking": False}, {"prompt": None, "messages": HI}),
    "thinking": ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 9}, {}),
    "system": ("a", [{"type": "text", "text": "b"}], {}),
    "output_config": ({"effort": "low"}, {"format": {"type": "json_schema", "schema": SCHEMA}}, {}),
    "encoding_format": ("float", "base64", {}),
    "dimensions": (1, 2, {}),
    f"{EMBEDDINGS} input": ("a", [[1]], {}),
    "input": ("a", [{"role": "user", "content": "b"}], {}),
    "instructions": ("a", "b", {}),
    "text": ({"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {}),
    "reasoning": ({"effort": "low"}, {"effort": "high"}, {}),
    "include": ([], ["message.output_text.logprobs"], {}),
    "add_special_tokens": (True, False, {}),
    "add_special": (True, False, {}),
    "parse_special": (True, False, {}),
    "return_token_strs": (True, False, {}),
    "with_pieces": (True, False, {}),
    "tokens": ([1], [2], {}),
}
# Fields that act on what is not generated, so that a count is the same; or that only pass when they ask for nothing.
SAME = {
    (COUNT, "thinking"),
    (COUNT, "output_config"),
    (RESPONSES, "stream_options"),
}


def parse(endpoint: str, **given: Any) -> Any:
    return PARSERS[endpoint]({**LEAST[endpoint], **given})


@pytest.mark.parametrize(("endpoint", "field"), ROWS, ids=NAMES)
def test_each_field_keeps_to_its_class(endpoint: str, field: fields.Field) -> None:
    """null is absent. Acting fields change the typed request; refused ones pass when neutral, and are named when not."""
    without = {name: value for name, value in LEAST[endpoint].items() if name != field.name}
    if field.required:
        with pytest.raises(RequestError) as missing:
            PARSERS[endpoint]({**without, field.name: None})
        assert missing.value.param == field.name
    elif field.name not in LEAST[endpoint]:
        assert parse(endpoint, **{field.name: None}) == parse(endpoint)
    if field.kind == "acts" and (endpoint, field.name) not in SAME:
        first, second, beside = DIFFERENT.get(f"{endpoint} {field.name}") or DIFFERENT[field.name]
        assert parse(endpoint, **{**beside, field.name: first}) != parse(endpoint, **{**beside, field.name: second})
    elif field.kind == "refused":
        for neutral in field.neutral:
            assert parse(endpoint, **{field.name: neutral}) == parse(endpoint)
        with pytest.raises(RequestError) as refused:
            parse(endpoint, **{field.name: "anything else"})
        assert refused.value.status == 400 and refused.value.param == field.name
        assert refused.value.code in ("unsupported_parameter", "chained_conversation_not_supported")
        assert field.doc in refused.value.message


@pytest.mark.parametrize(("endpoint", "field"), ROWS, ids=NAMES)
def test_strange_values_are_client_errors(endpoint: str, field: fields.Field) -> None:
    """No value of any type raises anything but a RequestError that names the field (or something in it)."""
    for value in STRANGE:
        try:
            parse(endpoint, **{field.name: value})
        except RequestError as error:
            assert 400 <= error.status < 500 and (error.param or "").startswith(field.name), value


INERT: dict[str, Any] = {
    "user": "u",
    "metadata": {"k": "v"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "service_tier": "auto",
    "store": False,
    "max_tool_calls": 3,
    "truncation": "disabled",
    "background": False,
    "cache_control": {"type": "ephemeral"},
}


@pytest.mark.parametrize("endpoint", PARSERS)
def test_inert_fields_change_no_token(endpoint: str) -> None:
    """They are checked and have no effect but to be named in the reply."""
    inert = {field.name: INERT[field.name] for field in tables.ALL[endpoint] if field.kind == "inert"}
    given, plain = parse(endpoint, **inert), parse(endpoint)
    if endpoint in (TOKENIZE, DETOKENIZE):
        assert not inert
        return
    assert given.prompts == plain.prompts and getattr(given, "options", None) == getattr(plain, "options", None)
    for name in inert:
        with pytest.raises(RequestError) as wrong:
            parse(endpoint, **{name: ["never"]})
        assert wrong.value.param == name


def test_neutral_values_pass() -> None:
    """A body full of values that ask for nothing is the same as one without them."""
    neutral = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "store": False,
        "logprobs": False,
    }
    chat = {"tools": [], "response_format": {"type": "text"}, "tool_choice": "none", "parallel_tool_calls": True}
    assert parse(CHAT, **neutral, **chat) == parse(CHAT)


def test_true_is_not_one() -> None:
    """JSON's true and 1 are different values, so a neutral 1 does not let true pass."""
    with pytest.raises(RequestError):
        parse(COMPLETIONS, best_of=True)
    assert parse(COMPLETIONS, best_of=1.0) == parse(COMPLETIONS)


def test_a_misspelt_field_gets_the_nearest_name() -> None:
    with pytest.raises(RequestError) as caught:
        parse(CHAT, temprature=0)
    assert (
        caught.value.code == "unknown_parameter"
        and "`temperature`" in caught.value.message
        and caught.value.param == "temprature"
    )


@pytest.mark.parametrize("endpoint", PARSERS)
def test_the_documentation_has_the_table(endpoint: str) -> None:
    """docs/api.md holds the table as it is."""
    assert fields.markdown(tables.ALL[endpoint]) in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_row_is_told_apart() -> None:
    for table in tables.ALL.values():
        names = [field.name for field in table]
        assert len(names) == len(set(names))
        assert all(field.doc for field in table)
