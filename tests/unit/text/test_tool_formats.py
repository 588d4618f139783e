"""Tool calls as models write them: where a section ends, what is in it, and what is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helexa.text.tool_formats import Call, Tool, detect
from helexa.text.tool_formats.llama import LlamaJson
from helexa.text.tool_formats.mistral import MistralArgs, MistralList
from helexa.text.tool_formats.tagged import TaggedJson, TaggedXml

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array"},
        "limit": {"type": ["number", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    },
    "required": ["city"],
}
TOOLS = {"weather": Tool("weather", "Weather.", SCHEMA)}


def arguments(calls: list[Call]) -> list[Any]:
    return [json.loads(call.arguments) for call in calls]


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("<tool_call>{...}</tool_call>", TaggedJson),
        ("<tool_call><function=x><parameter=y>", TaggedXml),
        ("[TOOL_CALLS]", MistralList),
        ("[TOOL_CALLS]name[ARGS]", MistralArgs),
        ("<|python_tag|>", LlamaJson),
        ("nothing of the kind", TaggedJson),
    ],
)
def test_the_format_is_read_off_the_template(template: str, kind: type) -> None:
    assert type(detect(template)) is kind


@pytest.mark.parametrize(
    ("format", "section", "expected"),
    [
        (TaggedJson(), '<tool_call>\n{"name": "weather", "arguments": {"city": "A"}}\n</tool_call>', [{"city": "A"}]),
        (TaggedJson(), '<tool_call>{"name": "weather", "parameters": {"city": "A"}}', [{"city": "A"}]),
        (TaggedJson(), '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"A\\"}"}</tool_call>', [{"city": "A"}]),
        (MistralList(), '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "A"}}, {"name": "x"}]', [{"city": "A"}, {}]),
        (MistralArgs(), '[TOOL_CALLS]weather[ARGS]{"city": "A"}[TOOL_CALLS]x[ARGS]{}', [{"city": "A"}, {}]),
        (
            LlamaJson(),
            '<|python_tag|>{"name": "weather", "parameters": {"city": "A"}}; {"name": "x", "parameters": {}}',
            [{"city": "A"}, {}],
        ),
    ],
)
def test_calls_are_taken_out(format: Any, section: str, expected: list[Any]) -> None:
    """Several calls, both names of arguments, arguments as text, and a last section without its closing marker."""
    calls = format.calls(section, TOOLS)
    assert arguments(calls) == expected and calls[0].name == "weather"


@pytest.mark.parametrize("format", [TaggedJson(), TaggedXml(), MistralList(), MistralArgs(), LlamaJson()])
@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]x",
        '{"name": 3, "arguments": {}}',
        '{"name": "weather", "arguments": []}',
        '{"name": "weather", "arguments": {"a": NaN}}',
        '{"name": "weather", "arguments": "nonsense"}',
        "[" * 5000,
        "weather[ARGS]{",
        "weather[ARGS]7",
        "<function=weather>rubbish</function>",
        "<function=weather",
        "hello there",
    ],
)
def test_what_is_no_call_is_none(format: Any, body: str) -> None:
    """Nothing that a model writes raises an error or becomes half a call."""
    assert format.calls(f"{format.opens[0]}{body}", TOOLS) == []


def test_a_closing_marker_inside_a_string_does_not_close() -> None:
    """Neither in JSON nor in an XML parameter."""
    text = '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call> and more'
    end = TaggedJson().section_end(text, 0)
    assert end == text.index(" and more") and arguments(TaggedJson().calls(text[:end], TOOLS)) == [{"city": "</tool_call>"}]
    xml = "<tool_call>\n<function=weather>\n<parameter=city>\n</tool_call>\n</parameter>\n</function>\n</tool_call> and more"
    end = TaggedXml().section_end(xml, 0)
    assert end == xml.index(" and more") and arguments(TaggedXml().calls(xml[:end], TOOLS)) == [{"city": "</tool_call>"}]


def test_xml_arguments_become_what_the_schema_names() -> None:
    """A text that is none of the schema's types stays a string; so does one without a schema."""
    given = {
        "city": ("12", "12"),
        "days": ("3", 3),
        "exact": ("True", True),
        "tags": ('["a"]', ["a"]),
        "limit": ("null", None),
        "either": ("x y", "x y"),
        "other": ("7", "7"),
    }
    body = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, (text, _) in given.items())
    (call,) = TaggedXml().calls(f"<tool_call>\n<function=weather>\n{body}</function>\n</tool_call>", TOOLS)
    assert json.loads(call.arguments) == {name: value for name, (_, value) in given.items()}
    (call,) = TaggedXml().calls(
        "<tool_call><function=weather>\n<parameter=days>\nmany\n</parameter></function></tool_call>", TOOLS
    )
    assert json.loads(call.arguments) == {"days": "many"}


@pytest.mark.parametrize("format", [TaggedJson(), TaggedXml(), MistralList(), MistralArgs(), LlamaJson()])
def test_what_is_written_is_read_back(format: Any) -> None:
    """History for templates that have no place for calls is in the form that the parser reads."""
    given = {"city": 'São "Paulo"', "days": 2}
    text = format.write([("weather", given)])
    (call,) = format.calls(text, TOOLS)
    assert call.name == "weather" and json.loads(call.arguments) == given
