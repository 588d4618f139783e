"""Tools and tool choices of OpenAI's two chat endpoints, to a ToolUse. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.text.tool_formats import Tool
from helexa.web.request import ToolUse
from helexa.web.wire import checks
from helexa.web.wire.fields import checked, flag, shown, unknown

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def chat_tools(values: Mapping[str, Any]) -> ToolUse | None:
    """Tools as `{"type": "function", "function": {...}}`."""
    tools = [_wrapped(given, f"tools[{index}]") for index, given in enumerate(values.get("tools") or ())]
    return tool_use(tools, values.get("tool_choice"), values.get("parallel_tool_calls", True))


def responses_tools(values: Mapping[str, Any]) -> ToolUse | None:
    """Tools as `{"type": "function", "name": ...}`."""
    tools = [
        function(_typed(given, f"tools[{index}]"), f"tools[{index}]") for index, given in enumerate(values.get("tools") or ())
    ]
    return tool_use(tools, values.get("tool_choice"), values.get("parallel_tool_calls", True))


def tool_use(tools: list[Tool], choice: Any, parallel: bool) -> ToolUse | None:
    names = [tool.name for tool in tools]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError("invalid_value", f"`tools` has two functions named `{twice}`", "tools")
    if choice is None or choice in ("auto", "none"):
        return None if choice == "none" or not tools else ToolUse(tools, [], parallel)
    if choice == "required":
        return ToolUse(tools, _offered(names, names), parallel)
    if isinstance(choice, dict):
        _only(choice, ("type", "name", "function", "allowed_tools", "mode", "tools"), "tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice, parallel)
    if isinstance(choice, dict) and choice.get("type") == "function":
        return ToolUse(tools, _offered([_named(choice)], names), parallel)
    raise RequestError(
        "invalid_value",
        f"`tool_choice` must be auto, none, required, or an object of type function or allowed_tools, not {shown(choice)}",
        "tool_choice",
    )


def _named(choice: Mapping[str, Any]) -> Any:
    inner = choice.get("function")
    return inner.get("name") if isinstance(inner, dict) else choice.get("name")


def _offered(wanted: Iterable[Any], names: list[str]) -> list[str]:
    found = list(wanted)
    missing = [name for name in found if name not in names]
    if missing or not found:
        named = shown(missing[0]) if missing else "nothing"
        raise RequestError("invalid_value", f"`tool_choice` names {named}, which `tools` does not offer", "tool_choice")
    return found


def _allowed(tools: list[Tool], choice: Mapping[str, Any], parallel: bool) -> ToolUse | None:
    inner = choice.get("allowed_tools", choice)
    given = inner.get("tools") if isinstance(inner, dict) else None
    mode = inner.get("mode", "auto") if isinstance(inner, dict) else None
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given) or mode not in ("auto", "required"):
        raise RequestError(
            "invalid_value", "`tool_choice` allowed_tools needs `tools`, an array, and `mode`: auto or required", "tool_choice"
        )
    names = _offered([_named(item) for item in given], [tool.name for tool in tools])
    return ToolUse([tool for tool in tools if tool.name in names], names if mode == "required" else [], parallel)


def _typed(given: Any, place: str) -> dict[str, Any]:
    tool: dict[str, Any] = checked(place, given, checks.Object())
    if tool.get("type") != "function":
        raise RequestError(
            "unsupported_parameter",
            f"`{place}.type` {shown(tool.get('type'))} is not supported: only functions are",
            f"{place}.type",
        )
    return tool


def _wrapped(given: Any, place: str) -> Tool:
    tool = _typed(given, place)
    _only(tool, ("type", "function"), place)
    return function(checked(f"{place}.function", tool.get("function"), checks.Object()), f"{place}.function")


def _only(given: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for name, value in given.items():
        if name not in known and value is not None:
            raise unknown(f"{place}.{name}", dict.fromkeys(known))


def function(given: Mapping[str, Any], place: str, schema: str = "parameters") -> Tool:
    """A function's name, description and JSON Schema; `schema` is what the last is called."""
    if schema == "parameters":
        _only(given, ("type", "name", "description", "parameters", "strict"), place)
    name = given.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            "invalid_value",
            f"`{place}.name` must be 1 to 128 letters, digits, `_`, `-`, `.`, `:`, not {shown(name)}",
            f"{place}.name",
        )
    description = given.get("description")
    parameters = given.get(schema)
    return Tool(
        name,
        "" if description is None else checked(f"{place}.description", description, checks.Text(2**16)),
        {} if parameters is None else checked(f"{place}.{schema}", parameters, checks.Object()),
        flag(f"{place}.strict", given.get("strict")),
    )
