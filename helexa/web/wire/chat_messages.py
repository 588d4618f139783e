"""The `messages` of a chat request, to what a chat template takes: dicts with `role` and a string `content`. Pure."""

from __future__ import annotations

from typing import Any

from helexa.errors import RequestError
from helexa.web.wire import checks
from helexa.web.wire.fields import checked, shown, unknown

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
IMAGE_PARTS = frozenset({"image_url", "image", "input_image"})

# Beside role and content. What an assistant message of a reply carries when it is sent back passes while it says nothing.
_PASSED_ON = ("name", "tool_call_id")
_EMPTY_ONLY = ("tool_calls", "function_call", "refusal", "audio", "annotations", "reasoning_content", "reasoning")


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
    parsed: dict[str, Any] = {"role": role, "content": _content(message.get("content"), f"{place}.content", role)}
    for name, value in message.items():
        if name in ("role", "content") or value is None:
            continue
        if name in _PASSED_ON:
            parsed[name] = checked(f"{place}.{name}", value, checks.Text(256))
        elif name not in _EMPTY_ONLY:
            raise unknown(f"{place}.{name}", dict.fromkeys(("role", "content", *_PASSED_ON)))
        elif value not in ([], ""):
            raise RequestError(
                "unsupported_parameter", f"`{place}.{name}` is not supported: messages carry text only", f"{place}.{name}"
            )
    return parsed


def _content(given: Any, place: str, role: str) -> str:
    if isinstance(given, str):
        return given
    if given is None and role == "assistant":
        return ""
    if not isinstance(given, list):
        raise RequestError("invalid_value", f"`{place}` must be a string or an array of text parts, not {shown(given)}", place)
    return "\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(given))


def _part(given: Any, place: str) -> str:
    part = checked(place, given, checks.Object())
    kind = part.get("type")
    if kind in IMAGE_PARTS:
        raise RequestError("vision_unsupported", f"`{place}` is an image; the model reads text only", place)
    if kind not in TEXT_PARTS:
        raise RequestError(
            "unsupported_parameter", f"`{place}.type` {shown(kind)} is not supported: only text parts are", f"{place}.type"
        )
    for name, value in part.items():
        if name not in ("type", "text") and value not in (None, [], {}):
            raise unknown(f"{place}.{name}", dict.fromkeys(("type", "text")))
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError("invalid_value", f"`{place}.text` must be a string, not {shown(text)}", f"{place}.text")
    return text
