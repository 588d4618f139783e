"""Llama 3's calls: the whole reply is JSON objects, `{"name": ..., "parameters": {...}}`, separated by semicolons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from helexa.text.tool_formats.calls import Call, CallGrammar, Tool, call_of, one_of, parse_json

OPEN = "<|python_tag|>"
_decoder = json.JSONDecoder()


class LlamaJson:
    opens = (OPEN,)
    markers = (OPEN,)
    bare = True

    def section_end(self, text: str, searched: int) -> int | None:
        return None

    def calls(self, section: str, tools: Mapping[str, Tool]) -> list[Call]:
        body, calls = section.removeprefix(OPEN).strip(), []
        while body:
            try:
                _, end = _decoder.raw_decode(body)
                value = parse_json(body[:end])
            except (ValueError, RecursionError):
                return []
            call = call_of(value) if isinstance(value, dict) and ("parameters" in value or "arguments" in value) else None
            rest = body[end:].lstrip()
            if call is None or (rest and not rest.startswith(";")):
                return []
            calls.append(call)
            body = rest[1:].lstrip()
        return calls

    def grammar(self, tools: Sequence[Tool], several: bool) -> CallGrammar:
        call = one_of(tools, '{"name": "', '", "parameters": ', "}")
        return CallGrammar(f'{call.rule} ("; " {call.rule})*', call.schemas) if several else call

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        return "; ".join(json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False) for name, arguments in calls)
