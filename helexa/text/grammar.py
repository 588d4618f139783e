"""Grammars that a reply is held to, as text for llguidance. Composed here, compiled in the device worker; pure.

The text is llguidance's JSON: a list of grammars of which the first, `start`, in its dialect of Lark, names the others as @NAME.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from llguidance.gbnf_to_lark import any_to_lark

from helexa.errors import RequestError
from helexa.text.reasoning import Markers, Place
from helexa.text.tool_formats import Tool, ToolFormat
from helexa.text.tool_formats.calls import quoted

MAX_GRAMMAR = 32 * 1024  # bytes of text; a step's messages must hold it
MAX_CHOICES = 1024
JSON_SPACE = r"[ \n\r\t]{0,32}"  # a model that may write white space for ever does

Kind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True)
class OutputFormat:
    """What a reply must be. `value`: nothing, a JSON Schema, a regular expression, a list of strings, or a grammar in Lark or
    GBNF. `param` names the field that asked for it; `lenient`: keywords that are not served are passed over."""

    kind: Kind
    value: Any
    param: str
    lenient: bool = False


@dataclass(frozen=True)
class Forced:
    """Calls that a reply must be, or with `optional` may be instead of its format."""

    format: ToolFormat
    tools: list[Tool]
    several: bool
    optional: bool = False


@dataclass(frozen=True)
class Context:
    """What a grammar must fit: the reasoning that may come first, and ids of markers that are control tokens."""

    markers: Markers | None
    place: Place
    control_ids: dict[str, int]


def compose(format: OutputFormat | None, forced: Forced | None, context: Context) -> str:
    """The grammar of a whole reply; empty where it is free. RequestError where it is too long or cannot be written down."""
    if format is None and (forced is None or forced.optional):
        return ""
    grammars: list[dict[str, Any]] = []
    arms, rules = [], ""
    if format is not None:
        arms.append("@format")
        grammars.append({"name": "format", **_format(format)})
    if forced is not None:
        calls = forced.format.grammar(forced.tools, forced.several)
        arms.append(_with_controls(calls.rule, context))
        rules = calls.rules
        grammars += [{"name": name, "json_schema": _spaced(schema)} for name, schema in calls.schemas.items()]
    reply = " | ".join(f"({arm})" for arm in arms)
    start = f"start: {_reasoning_first(context)}({reply})\n{_reasoning_rules(context)}{rules}"
    text = json.dumps({"grammars": [{"lark_grammar": start}, *grammars]}, ensure_ascii=False)
    if len(text.encode()) > MAX_GRAMMAR:
        param = format.param if format is not None else "tools"
        raise RequestError(
            "invalid_value", f"`{param}` makes a grammar of {len(text.encode())} bytes; at most {MAX_GRAMMAR} are served", param
        )
    return text


def _format(format: OutputFormat) -> dict[str, Any]:
    value = format.value
    if format.kind == "json_object":
        return {"json_schema": _spaced({"type": "object"})}
    if format.kind == "json_schema":
        lenient = {"lenient": True} if format.lenient else {}
        return {"json_schema": _spaced({**value, "x-guidance": lenient} if isinstance(value, dict) else value)}
    if format.kind == "regex":
        return {"lark_grammar": f"start: {_pattern(value)}\n"}
    if format.kind == "choice":
        return {"lark_grammar": "start: " + " | ".join(quoted(item) for item in value) + "\n"}
    try:
        return {"lark_grammar": any_to_lark(value)}
    except Exception as error:  # a client's text in a foreign parser
        raise RequestError("invalid_value", f"`{format.param}` is not a grammar: {str(error)[:200]}", format.param) from None


def _spaced(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    given = schema.get("x-guidance")
    return {**schema, "x-guidance": {**(given if isinstance(given, dict) else {}), "whitespace_pattern": JSON_SPACE}}


def _pattern(regex: str) -> str:
    """A regular expression between slashes; a line break in it as an escape."""
    escaped, backslash = [], False
    for letter in regex:
        escaped.append("\\/" if letter == "/" and not backslash else "\\n" if letter == "\n" else letter)
        backslash = letter == "\\" and not backslash
    return "/" + "".join(escaped) + "/"


def _marker(text: str, context: Context) -> str:
    """A marker of the model: its text, or the token itself where that is a control token, which has no text."""
    return f"<[{context.control_ids[text]}]>" if text in context.control_ids else quoted(text)


def _reasoning_first(context: Context) -> str:
    if context.markers is None or context.place == "over":
        return ""
    if context.place == "inside":
        return "reasoning "
    return f"({_marker(context.markers.open, context)} reasoning)? "


def _reasoning_rules(context: Context) -> str:
    """Anything up to the closing marker, and the white space after it."""
    if context.markers is None or context.place == "over":
        return ""
    space, close = r"/[ \n\r\t]{0,8}/", context.markers.close
    if close in context.control_ids:
        return f"reasoning: /(.|\\n)*/ {_marker(close, context)} {space}\n"
    return f"reasoning: thoughts {space}\nthoughts[suffix={quoted(close)}]: /(.|\\n)*/\n"


def _with_controls(rule: str, context: Context) -> str:
    """The rule with control tokens in place of their spelling inside of literals."""
    for text, id in context.control_ids.items():
        rule = rule.replace(quoted(text)[1:-1], f'" <[{id}]> "')
    return rule.replace('"" ', "").replace(' ""', "")
