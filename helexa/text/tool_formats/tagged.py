"""Calls between <tool_call> and </tool_call>: as JSON (Hermes, Qwen 2.5, Qwen 3), or as XML (Qwen 3 Coder, Qwen 3.5)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from helexa.text.tool_formats.calls import Call, CallGrammar, Tool, call_of, one_of, parse_json, quoted

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_PARAMETER_END = "\n</parameter>\n"
_TEXT_RULE = f"text_parameter[suffix={quoted(_PARAMETER_END)}]: /(.|\\n)*/\n"


class _Tagged:
    opens = (OPEN,)
    markers = (OPEN, CLOSE)
    bare = False

    def section_end(self, text: str, searched: int) -> int | None:
        at = max(len(OPEN), searched - len(CLOSE))
        while (at := text.find(CLOSE, at)) >= 0:
            at += len(CLOSE)
            if _closes(text[len(OPEN) : at - len(CLOSE)]):
                return at
        return None

    def calls(self, section: str, tools: Mapping[str, Tool]) -> list[Call]:
        body = section.removeprefix(OPEN).removesuffix(CLOSE).strip()
        call = _from_xml(body, tools) if body.startswith("<function=") else _from_json(body)
        return [] if call is None else [call]


class TaggedJson(_Tagged):
    def grammar(self, tools: Sequence[Tool], several: bool) -> CallGrammar:
        call = one_of(tools, f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}")
        return CallGrammar(f"{call.rule} ({quoted(chr(10))} {call.rule})*", call.schemas) if several else call

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        texts = (json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls)
        return "\n".join(f"{OPEN}\n{text}\n{CLOSE}" for text in texts)


class TaggedXml(_Tagged):
    def grammar(self, tools: Sequence[Tool], several: bool) -> CallGrammar:
        arms: list[str] = []
        schemas: dict[str, dict[str, Any]] = {}
        for number, tool in enumerate(tools):
            arm, named = self._arm(tool, f"arguments_{number}")
            arms.append(arm)
            schemas |= named
        call = "(" + " | ".join(arms) + ")"
        return CallGrammar(f"{call} ({quoted(chr(10))} {call})*" if several else call, schemas, _TEXT_RULE)

    def _arm(self, tool: Tool, prefix: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """The tool's parameters in the order of its schema, the required ones always."""
        schema = tool.parameters or {}
        required, named = set(schema.get("required") or ()), {}
        parts = [quoted(f"{OPEN}\n<function={tool.name}>\n")]
        properties = schema.get("properties")
        for place, (name, value) in enumerate((properties if isinstance(properties, dict) else {}).items()):
            value = value if isinstance(value, dict) else {}
            opening = quoted(f"<parameter={name}>\n")
            if _types(value) <= {"string"} and "enum" not in value:
                part = f"{opening} text_parameter"
            else:
                key = f"{prefix}_{place}"
                named[key] = {**value, "x-guidance": {"lenient": not tool.strict}}
                part = f"{opening} @{key} {quoted(_PARAMETER_END)}"
            parts.append(part if name in required else f"({part})?")
        return " ".join([*parts, quoted(f"</function>\n{CLOSE}")]), named

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        return "\n".join(self._written(name, arguments) for name, arguments in calls)

    def _written(self, name: str, arguments: dict[str, Any]) -> str:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        return f"{OPEN}\n<function={name}>\n{parameters}</function>\n{CLOSE}"


def _closes(body: str) -> bool:
    """Whether a closing marker after `body` ends the section: not inside a string of JSON, nor inside a parameter."""
    if body.lstrip().startswith("<function="):
        return body.rstrip().endswith("</function>") or "<parameter=" not in body.rpartition("</parameter>")[2]
    return '"' not in _STRING.sub("", body)


def _from_json(body: str) -> Call | None:
    try:
        return call_of(parse_json(body))
    except ValueError:
        return None


def _from_xml(body: str, tools: Mapping[str, Tool]) -> Call | None:
    found = _FUNCTION.fullmatch(body)
    if found is None:
        return None
    name, inner = found[1].strip(), found[2]
    if _PARAMETER.sub("", inner).strip():
        return None
    schema = (tools[name].parameters if name in tools else {}).get("properties")
    properties: dict[str, Any] = schema if isinstance(schema, dict) else {}
    arguments = {key.strip(): _coerced(_unframed(text), properties.get(key.strip())) for key, text in _PARAMETER.findall(inner)}
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _unframed(text: str) -> str:
    """A parameter's text without the line breaks that set it off."""
    return text.removeprefix("\n").removesuffix("\n")


def _coerced(text: str, schema: Any) -> Any:
    """The text as its schema's type; as a string where it is none of that type, or may be one."""
    types = _types(schema if isinstance(schema, dict) else {})
    if not types - {"string"}:
        return text
    try:
        value = parse_json(text.strip())
    except ValueError:
        lowered = text.strip().lower()
        return lowered == "true" if "boolean" in types and lowered in ("true", "false") else text
    return value if _type(value) & types else text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows, as far as its head says."""
    given = schema.get("type", [])
    types = {given} if isinstance(given, str) else {item for item in given if isinstance(item, str)}
    for key in ("anyOf", "oneOf"):
        arms = schema.get(key)
        for arm in arms if isinstance(arms, list) else []:
            types |= _types(arm) if isinstance(arm, dict) else set()
    return types


def _type(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    return {{dict: "object", list: "array", str: "string", type(None): "null"}[type(value)]}
