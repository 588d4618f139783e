"""The `messages` of a chat request, to what helexa.text.chat_format takes: dicts with `role` and a string `content`. Pure."""

from __future__ import annotations

import json
from typing import Any

from helexa.errors import RequestError
from helexa.web.wire import checks
from helexa.web.wire.fields import checked, shown, unknown

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
IMAGE_PARTS = frozenset({"image_url", "image", "input_image"})

_PASSED_ON = ("name", "tool_call_id")
_REASONING = ("reasoning_content", "reasoning")  # two names of one thing
# What an assistant message of a reply carries when it is sent back passes while it says nothing.
_EMPTY_ONLY = ("function_call", "refusal", "audio", "annotations")
_KNOWN = dict.fromkeys(("role", "content", "tool_calls", *_PASSED_ON, *_REASONING))


def parse_messages(given: list[Any]) -> list[dict[str, Any]]:
    """Raises RequestError naming the place, as `messages[2].content`."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(given)]


def _message(given: Any, place: str) -> dict[str, Any]:
    message = checked(place, given, checks.Object())
    role = ROLES.get(message["role"]) if isinstance(message.get("role"), str) else None
    if role is None:
        raise RequestError(
            "invalid_value",
            f"`{place}.role` must be one of {', '.join(ROLES)}, not {shown(message.get('role'))}",
            f"{place}.role",
        )
    parsed: dict[str, Any] = {"role": role, "content": content(message.get("content"), f"{place}.content", role == "assistant")}
    for name, value in message.items():
        if name in ("role", "content") or value is None:
            continue
        param = f"{place}.{name}"
        if name in _PASSED_ON:
            parsed[name] = checked(param, value, checks.Text(256))
        elif name in _REASONING and role == "assistant":
            parsed["reasoning_content"] = checked(param, value, checks.Text(2**22))
        elif name == "tool_calls" and role == "assistant":
            calls = checked(param, value, checks.Array(128, "call"))
            if calls:
                parsed[name] = [_call(call, f"{param}[{index}]") for index, call in enumerate(calls)]
        elif name not in (*_EMPTY_ONLY, *_KNOWN):
            raise unknown(param, _KNOWN)
        elif value not in ([], ""):
            raise RequestError("unsupported_parameter", f"`{param}` is not supported in a message of role {role}", param)
    return parsed


def _call(given: Any, place: str) -> dict[str, Any]:
    call = checked(place, given, checks.Object())
    function = checked(f"{place}.function", call.get("function"), checks.Object())
    return tool_call(call.get("id"), function.get("name"), function.get("arguments"), place, f"{place}.function.arguments")


def tool_call(id: Any, name: Any, arguments: Any, place: str, arguments_place: str) -> dict[str, Any]:
    """A call of an earlier reply, its arguments as an object."""
    return {
        "id": checked(f"{place}.id", id, checks.Text(256, 1)),
        "type": "function",
        "function": {
            "name": checked(f"{place}.name", name, checks.Text(256, 1)),
            "arguments": _arguments(arguments, arguments_place),
        },
    }


def _arguments(given: Any, place: str) -> dict[str, Any]:
    """What the model once wrote; text that is no JSON object is kept as one argument, since models err."""
    if isinstance(given, dict):
        return given
    text = checked(place, given, checks.Text(2**22))
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"input": value}


def content(given: Any, place: str, optional: bool) -> str:
    """A string, or text parts, which become lines; `optional`: null is an empty one."""
    if isinstance(given, str):
        return given
    if given is None and optional:
        return ""
    if not isinstance(given, list):
        raise RequestError("invalid_value", f"`{place}` must be a string or an array of text parts, not {shown(given)}", place)
    return "\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(given))


def _part(given: Any, place: str) -> str:
    part = checked(place, given, checks.Object())
    kind = checked(f"{place}.type", part.get("type"), checks.Text(256))
    if kind in IMAGE_PARTS:
        raise RequestError("vision_unsupported", f"`{place}` is an image; the model reads text only", place)
    if kind not in TEXT_PARTS:
        raise RequestError(
            "unsupported_parameter", f"`{place}.type` {shown(kind)} is not supported: only text parts are", f"{place}.type"
        )
    key = "refusal" if kind == "refusal" else "text"
    for name, value in part.items():
        if name not in ("type", key, "annotations", "logprobs", "cache_control") and value not in (None, [], {}):
            raise unknown(f"{place}.{name}", dict.fromkeys(("type", "text")))
    text = part.get(key)
    if not isinstance(text, str):
        raise RequestError("invalid_value", f"`{place}.{key}` must be a string, not {shown(text)}", f"{place}.{key}")
    return text
