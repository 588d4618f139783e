"""The `system`, `messages` and `tools` of an Anthropic body, to a ChatPrompt. Pure.

One message of Anthropic's may be several here: each tool result is a message of its own, before the text that comes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.text.tool_formats import Tool
from helexa.web.request import EFFORTS, ChatPrompt, ToolUse
from helexa.web.wire import checks
from helexa.web.wire.chat_messages import tool_call
from helexa.web.wire.fields import checked, flag, shown, unknown
from helexa.web.wire.tools import function, tool_use

_NOT_SERVED = {
    "image": ("vision_unsupported", "is an image; the model reads text only"),
    "document": ("unsupported_parameter", "is a document; send its text"),
    "search_result": ("unsupported_parameter", "is a search result; send its text"),
    "container_upload": ("unsupported_parameter", "is a file; send its text"),
}
_EFFORT = checks.OneOf(("low", "medium", "high", "xhigh", "max"))
_TOOL_KEYS = ("name", "description", "input_schema", "strict", "type", "cache_control", "input_examples", "eager_input_streaming")


def parse_prompt(values: Mapping[str, Any]) -> ChatPrompt:
    """Of checked fields."""
    messages = []
    system = _text(values.get("system"), "system")
    if system:
        messages.append({"role": "system", "content": system})
    names: dict[str, str] = {}  # of the calls so far, by id
    for index, given in enumerate(values["messages"]):
        messages += _messages(given, f"messages[{index}]", names)
    return ChatPrompt(messages, _tools(values), values.get("chat_template_kwargs", {}))


def thinking_budget(values: Mapping[str, Any]) -> int | None:
    """The bound on reasoning: 0 where it is disabled, else the one given, else the effort's. A model without any keeps to it."""
    thinking = values.get("thinking") or {}
    for name in thinking:
        if name not in ("type", "budget_tokens", "display"):
            raise unknown(f"thinking.{name}", dict.fromkeys(("type", "budget_tokens")))
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in (None, "enabled", "adaptive", "disabled"):
        raise RequestError(
            "invalid_value", f"`thinking.type` must be enabled, adaptive or disabled, not {shown(kind)}", "thinking.type"
        )
    if kind == "disabled":
        return 0
    if budget is not None:
        return int(checked("thinking.budget_tokens", budget, checks.Integer(0, checks.INT32_MAX)))
    effort = (values.get("output_config") or {}).get("effort")
    return None if effort is None else EFFORTS.get(checked("output_config.effort", effort, _EFFORT))


def _messages(given: Any, place: str, names: dict[str, str]) -> list[dict[str, Any]]:
    message = checked(place, given, checks.Object())
    role, content = message.get("role"), message.get("content")
    for name in message:
        if name not in ("role", "content"):
            raise unknown(f"{place}.{name}", dict.fromkeys(("role", "content")))
    if role not in ("user", "assistant", "system"):
        raise RequestError("invalid_value", f"`{place}.role` must be user or assistant, not {shown(role)}", f"{place}.role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = checked(f"{place}.content", content, checks.TextOrArray())
    return _of_blocks(role, blocks, f"{place}.content", names)


def _of_blocks(role: str, blocks: list[Any], place: str, names: dict[str, str]) -> list[dict[str, Any]]:
    texts, thoughts, calls, results = [], [], [], []
    for index, given in enumerate(blocks):
        at = f"{place}[{index}]"
        block = checked(at, given, checks.Object())
        kind = block.get("type")
        if kind == "text":
            texts.append(checked(f"{at}.text", block.get("text"), checks.Text(2**23)))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block, at, names))
        elif kind == "tool_use" and role == "assistant":
            call = tool_call(block.get("id"), block.get("name"), block.get("input"), at, f"{at}.input")
            names[call["id"]] = call["function"]["name"]
            calls.append(call)
        elif kind == "thinking" and role == "assistant":
            thoughts.append(checked(f"{at}.thinking", block.get("thinking"), checks.Text(2**22)))
        elif kind != "redacted_thinking":
            raise _wrong_block(kind, role, at)
    messages = list(results)
    if texts or calls or thoughts or not results:
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _wrong_block(kind: Any, role: str, place: str) -> RequestError:
    code, why = _NOT_SERVED.get(
        str(kind), ("unsupported_parameter", f"of type {shown(kind)} is not supported in a {role} message")
    )
    return RequestError(code, f"`{place}` {why}", place)


def _result(block: Mapping[str, Any], place: str, names: Mapping[str, str]) -> dict[str, Any]:
    """A tool's result; that it is an error stands in the text, since templates have no other place for it."""
    id = checked(f"{place}.tool_use_id", block.get("tool_use_id"), checks.Text(256, 1))
    text = _text(block.get("content"), f"{place}.content")
    failed = flag(f"{place}.is_error", block.get("is_error"))
    message = {"role": "tool", "tool_call_id": id, "content": f"Error: {text}" if failed else text}
    return {**message, "name": names[id]} if id in names else message


def _text(given: Any, place: str) -> str:
    """A string or text blocks, which become lines."""
    if given is None or isinstance(given, str):
        return given or ""
    lines = []
    for index, item in enumerate(checked(place, given, checks.TextOrArray())):
        block = checked(f"{place}[{index}]", item, checks.Object())
        if block.get("type") != "text":
            raise _wrong_block(block.get("type"), "text", f"{place}[{index}]")
        lines.append(checked(f"{place}[{index}].text", block.get("text"), checks.Text(2**23)))
    return "\n".join(lines)


def _tools(values: Mapping[str, Any]) -> ToolUse | None:
    tools = [_tool(given, f"tools[{index}]") for index, given in enumerate(values.get("tools") or ())]
    given = values.get("tool_choice", {"type": "auto"})
    kind, parallel = given.get("type"), not flag("tool_choice.disable_parallel_tool_use", given.get("disable_parallel_tool_use"))
    for name in given:
        if name not in ("type", "name", "disable_parallel_tool_use"):
            raise unknown(f"tool_choice.{name}", dict.fromkeys(("type", "name", "disable_parallel_tool_use")))
    choices: dict[Any, Any] = {"auto": "auto", "any": "required", "none": "none"}
    if kind == "tool":
        return tool_use(tools, {"type": "function", "name": given.get("name")}, parallel)
    if not isinstance(kind, str) or kind not in choices:
        raise RequestError(
            "invalid_value", f"`tool_choice.type` must be auto, any, tool or none, not {shown(kind)}", "tool_choice.type"
        )
    return tool_use(tools, choices[kind], parallel)


def _tool(given: Any, place: str) -> Tool:
    tool = checked(place, given, checks.Object())
    if tool.get("type") not in (None, "custom"):
        raise RequestError(
            "unsupported_parameter",
            f"`{place}.type` {shown(tool['type'])} is not supported: no tools are run here",
            f"{place}.type",
        )
    for name in tool:
        if name not in _TOOL_KEYS:
            raise unknown(f"{place}.{name}", dict.fromkeys(_TOOL_KEYS))
    return function(tool, place, "input_schema")
