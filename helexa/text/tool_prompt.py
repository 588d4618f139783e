"""Tools for a chat template that has no place for them: they are described in the system message, and calls and their results are
written into the text of messages, in tagged JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from helexa.text.tool_formats import Tool, ToolFormat

_INSTRUCTIONS = (
    "You may call one or more of these functions to answer. Their signatures are JSON, one a line:\n{tools}\n"
    "To call a function, write a JSON object with its name and arguments like this:\n{example}"
)


def spelled_out(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], format: ToolFormat) -> list[dict[str, Any]]:
    """The messages with all of it in their `content`, which is a string; only roles system, user and assistant remain."""
    plain = [_plain(message, format) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool.document()["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=lines, example=format.write([("NAME", {})]))
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: Mapping[str, Any], format: ToolFormat) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if calls:
        written = format.write([(call["name"], call["arguments"]) for call in calls])
        plain["content"] = f"{message['content']}\n{written}" if message["content"] else written
    return plain
