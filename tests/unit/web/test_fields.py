"""The table of request fields: every row does what its class says, and people are told the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helexa.errors import RequestError
from helexa.web.wire import fields, openai_chat, openai_completions

ROOT = Path(__file__).parents[3]
PARSERS = {"chat": openai_chat.parse, "completions": openai_completions.parse}
TABLES = {"chat": fields.CHAT, "completions": fields.COMPLETIONS}
LEAST: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
}
ROWS = [(endpoint, field) for endpoint, table in TABLES.items() for field in table]
NAMES = [f"{endpoint}-{field.name}" for endpoint, field in ROWS]
STRANGE: list[Any] = [{"x": 1}, [{}], "\u0000nonsense", -(2**70), 1e300, True, [[]], 2**63, -1, 0.5]

# For each acting field two values that must give different requests, with what they need beside them.
DIFFERENT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "model": ("m", "other", {}),
    "stream": (False, True, {}),
    "stream_options": ({"include_usage": False}, {"include_usage": True}, {"stream": True}),
    "max_tokens": (1, 2, {}),
    "max_completion_tokens": (1, 2, {}),
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
    "stop_token_ids": ([], [5], {}),
    "ignore_eos": (False, True, {}),
    "return_token_ids": (False, True, {}),
    "return_token_sha": (False, True, {}),
    "messages": ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}], {}),
    "top_logprobs": (1, 2, {"logprobs": True}),
    "prompt": ("a", "b", {}),
    "echo": (False, True, {}),
}
DIFFERENT_LOGPROBS = {"chat": (False, True), "completions": (1, 2)}


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
    else:
        assert parse(endpoint, **{field.name: None}) == parse(endpoint)
    if field.kind == "acts":
        first, second = DIFFERENT_LOGPROBS[endpoint] if field.name == "logprobs" else DIFFERENT[field.name][:2]
        beside = {} if field.name == "logprobs" else DIFFERENT[field.name][2]
        assert parse(endpoint, **beside, **{field.name: first}) != parse(endpoint, **beside, **{field.name: second})
    elif field.kind == "refused":
        for neutral in field.neutral:
            assert parse(endpoint, **{field.name: neutral}) == parse(endpoint)
        with pytest.raises(RequestError) as refused:
            parse(endpoint, **{field.name: "anything else"})
        assert refused.value.code == "unsupported_parameter" and refused.value.param == field.name
        assert field.doc in refused.value.message


@pytest.mark.parametrize(("endpoint", "field"), ROWS, ids=NAMES)
def test_strange_values_are_client_errors(endpoint: str, field: fields.Field) -> None:
    """No value of any type raises anything but a RequestError that names the field (or something in it)."""
    for value in STRANGE:
        try:
            parse(endpoint, **{field.name: value})
        except RequestError as error:
            assert 400 <= error.status < 500 and (error.param or "").startswith(field.name), value


INERT = {"user": "u", "metadata": {"k": "v"}, "safety_identifier": "s", "prompt_cache_key": "k"}


@pytest.mark.parametrize("endpoint", PARSERS)
def test_inert_fields_change_nothing(endpoint: str) -> None:
    """They are checked and have no effect; a service tier is only named in the reply."""
    assert {field.name for field in TABLES[endpoint] if field.kind == "inert"} == {*INERT, "service_tier"}
    assert parse(endpoint, **INERT) == parse(endpoint)
    tiered = parse(endpoint, service_tier="auto")
    assert (tiered.options, tiered.prompts) == (parse(endpoint).options, parse(endpoint).prompts)
    with pytest.raises(RequestError):
        parse(endpoint, service_tier="flex")


def test_neutral_values_pass() -> None:
    """A body full of values that ask for nothing is the same as one without them."""
    neutral = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "store": False,
        "top_p": 1,
        "logprobs": False,
    }
    chat = {"tools": [], "response_format": {"type": "text"}, "tool_choice": "none", "parallel_tool_calls": True}
    assert parse("chat", **neutral, **chat) == parse("chat")


def test_true_is_not_one() -> None:
    """JSON's true and 1 are different values, so a neutral 1 does not let true pass."""
    with pytest.raises(RequestError):
        parse("completions", best_of=True)
    assert parse("completions", best_of=1.0) == parse("completions")


def test_a_misspelt_field_gets_the_nearest_name() -> None:
    with pytest.raises(RequestError) as caught:
        parse("chat", temprature=0)
    assert (
        caught.value.code == "unknown_parameter"
        and "`temperature`" in caught.value.message
        and caught.value.param == "temprature"
    )


@pytest.mark.parametrize("endpoint", PARSERS)
def test_the_documentation_has_the_table(endpoint: str) -> None:
    """docs/api.md holds the table as it is."""
    assert fields.markdown(TABLES[endpoint]) in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_row_is_told_apart() -> None:
    for table in TABLES.values():
        names = [field.name for field in table]
        assert len(names) == len(set(names))
        assert all(field.doc for field in table)
