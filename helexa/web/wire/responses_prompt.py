"""The `instructions` and `input` of a /v1/responses body, to messages for helexa.text.chat_format. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.web.wire import checks, compaction
from helexa.web.wire.chat_messages import ROLES, content, tool_call
from helexa.web.wire.fields import checked, shown, unknown

Message = dict[str, Any]

# What an item of each type may have; some of it came with a reply and says nothing to the model.
_SAYS_NOTHING = ("id", "status", "phase", "created_by")
_ITEM_FIELDS = {
    "message": ("type", "role", "content", "id", "status", "phase"),
    "function_call": ("type", "call_id", "name", "arguments", "id", "status"),
    "function_call_output": ("type", "call_id", "output", "id", "status"),
    "reasoning": ("type", "content", "summary", "id", "status"),
    "compaction": ("type", "encrypted_content", "id", "created_by"),
}


def parse_input(values: Mapping[str, Any]) -> list[Message]:
    """Of checked fields. Calls and reasoning join the assistant's message that they stand beside."""
    messages: list[Message] = []
    if values.get("instructions"):
        messages.append({"role": "system", "content": values["instructions"]})
    given = values["input"]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not given:
        raise RequestError("empty_prompt", "`input` is an empty array", "input")
    names: dict[str, str] = {}  # of the calls so far, by id
    for index, item in enumerate(given):
        _add(messages, checked(f"input[{index}]", item, checks.Object()), f"input[{index}]", names)
    return messages


def user_texts(given: Any) -> list[str]:
    """What the user says in an `input` that `parse_input` takes."""
    if isinstance(given, str):
        return [given]
    said = ((index, item) for index, item in enumerate(given) if item.get("type", "message") == "message")
    return [content(item["content"], f"input[{index}].content", False) for index, item in said if item["role"] == "user"]


def _add(messages: list[Message], item: Mapping[str, Any], place: str, names: dict[str, str]) -> None:
    kind = item.get("type", "message")
    _check_fields(item, place, str(kind))
    if kind == "message":
        messages.append(_message(item, place, messages))
    elif kind == "function_call":
        call = tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), place, f"{place}.arguments")
        names[call["id"]] = call["function"]["name"]
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        id = checked(f"{place}.call_id", item.get("call_id"), checks.Text(256, 1))
        result = {"role": "tool", "tool_call_id": id, "content": content(item.get("output"), f"{place}.output", False)}
        messages.append({**result, "name": names[id]} if id in names else result)
    elif kind == "reasoning":
        text = _reasoning(item, place)
        if text:
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})
    elif kind == "compaction":
        compaction.recall(messages, compaction.unpacked(item.get("encrypted_content"), f"{place}.encrypted_content"))
    elif kind == "item_reference":
        raise RequestError("unsupported_parameter", f"`{place}` refers to a stored item; replies are not stored: send it", place)
    else:
        raise RequestError("unsupported_parameter", f"`{place}.type` {shown(kind)} is not supported", f"{place}.type")


def _check_fields(item: Mapping[str, Any], place: str, kind: str) -> None:
    """An item's field that nothing reads is an error, as it is at the top."""
    known = _ITEM_FIELDS.get(kind, item)
    for name, value in item.items():
        if name not in known and value is not None:
            raise unknown(f"{place}.{name}", dict.fromkeys(known))
        if name in _SAYS_NOTHING and value is not None:
            checked(f"{place}.{name}", value, checks.Text(256))


def _message(item: Mapping[str, Any], place: str, messages: list[Message]) -> Message:
    given = item.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None or role == "tool":
        raise RequestError(
            "invalid_value", f"`{place}.role` must be system, developer, user or assistant, not {shown(given)}", f"{place}.role"
        )
    text = content(item.get("content"), f"{place}.content", role == "assistant")
    if role == "assistant" and messages and messages[-1] == {**messages[-1], "role": "assistant", "content": ""}:
        return {**messages.pop(), "content": text}
    return {"role": role, "content": text}


def _assistant(messages: list[Message]) -> Message:
    """The assistant's message at the end, made if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _reasoning(item: Mapping[str, Any], place: str) -> str:
    """An earlier reply's reasoning, where it was sent in the open."""
    given = {name: item.get(name) for name in ("content", "summary")}
    arrays = {
        name: checked(f"{place}.{name}", value, checks.Array(64, "part")) for name, value in given.items() if value is not None
    }
    name = "content" if arrays.get("content") else "summary"
    lines = []
    for index, part in enumerate(arrays.get(name, [])):
        at = f"{place}.{name}[{index}]"
        fields = checked(at, part, checks.Object())
        checked(f"{at}.type", fields.get("type", "reasoning_text"), checks.OneOf(("reasoning_text", "summary_text")))
        lines.append(checked(f"{at}.text", fields.get("text"), checks.Text(2**22)))
    return "\n".join(lines)
