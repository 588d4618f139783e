"""Mistral's calls, which last to the end of the reply: [TOOL_CALLS][{...}, ...], or later [TOOL_CALLS]name[ARGS]{...} each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from helexa.text.tool_formats.calls import Call, CallGrammar, Tool, call_of, one_of, parse_json, quoted

OPEN, ARGS = "[TOOL_CALLS]", "[ARGS]"
_decoder = json.JSONDecoder()


class _Mistral:
    """Both forms are read, whichever the model was taught."""

    opens = (OPEN,)
    markers = (OPEN, ARGS)
    bare = False

    def section_end(self, text: str, searched: int) -> int | None:
        return None

    def calls(self, section: str, tools: Mapping[str, Tool]) -> list[Call]:
        body = section.removeprefix(OPEN).strip()
        if body.startswith("["):
            return _from_list(body)
        return _from_names(body)


class MistralList(_Mistral):
    def grammar(self, tools: Sequence[Tool], several: bool) -> CallGrammar:
        call = one_of(tools, '{"name": "', '", "arguments": ', "}")
        more = f'(", " {call.rule})*' if several else ""
        return CallGrammar(f'{quoted(OPEN)} "[" {call.rule} {more} "]"', call.schemas)

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        return OPEN + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls], ensure_ascii=False)


class MistralArgs(_Mistral):
    def grammar(self, tools: Sequence[Tool], several: bool) -> CallGrammar:
        call = one_of(tools, OPEN, ARGS, "")
        return CallGrammar(f"{call.rule}+" if several else call.rule, call.schemas)

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        return "".join(f"{OPEN}{name}{ARGS}{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls)


def _from_list(body: str) -> list[Call]:
    try:
        values = parse_json(body)
    except ValueError:
        return []
    calls = [call_of(value) for value in values]
    return [] if None in calls else [call for call in calls if call is not None]


def _from_names(body: str) -> list[Call]:
    calls = []
    while body:
        name, found, rest = body.removeprefix(OPEN).partition(ARGS)
        rest = rest.lstrip()
        if not found or not name.strip():
            return []
        try:
            value, end = _decoder.raw_decode(rest)
            call = call_of({"name": name.strip(), "arguments": parse_json(rest[:end])})
        except (ValueError, RecursionError):
            return []
        if call is None or not isinstance(value, dict):
            return []
        calls.append(call)
        body = rest[end:].lstrip()
        if body and not body.startswith(OPEN):
            return []
    return calls
