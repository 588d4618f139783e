"""The item that stands for a conversation that was summed up: how it is written, and read back. Pure.

The server keeps nothing, so the item carries the summary itself, as base64 of a JSON object. It is no secret and needs no seal: whoever
sends it might as well send the words.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from helexa.errors import RequestError
from helexa.web.wire import checks
from helexa.web.wire.fields import checked

MOST_CHARACTERS = 10_485_760
ASKED = (
    "Summarize our conversation so far, so that it can be continued from your summary alone. Keep every fact, name, number, decision, "
    "result and open question; say what I asked for last and whether it is done."
)
_VERSION = 1
Message = dict[str, Any]


def packed(summary: str) -> str:
    document = {"version": _VERSION, "summary": summary}
    return base64.b64encode(json.dumps(document, ensure_ascii=False).encode()).decode()


def unpacked(given: Any, place: str) -> str:
    """The summary in an item's `encrypted_content`. Raises RequestError for what `packed` did not write."""
    text = checked(place, given, checks.Text(MOST_CHARACTERS, 1))
    try:
        document = json.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("version") != _VERSION or not isinstance(document.get("summary"), str):
        raise RequestError("invalid_value", f"`{place}` is not from this server's /v1/responses/compact", place)
    return str(document["summary"])


def ask(messages: list[Message]) -> None:
    """Asks for the summary of the messages, in the user's last turn if there is one: templates want turns to alternate."""
    told: list[str] = []
    while messages and messages[-1]["role"] == "user":
        told.insert(0, messages.pop()["content"])
    messages.append({"role": "user", "content": "\n\n".join([*told, ASKED])})


def recall(messages: list[Message], summary: str) -> None:
    """The turn in which the summary was made, after the user's messages that were kept beside it."""
    ask(messages)
    messages.append({"role": "assistant", "content": summary})
