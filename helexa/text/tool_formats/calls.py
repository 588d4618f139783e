"""What every tool format shares: tools, calls, strict JSON, and the pieces of a grammar that forces a call. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False  # the schema is to be kept to the letter, so one that cannot be is refused

    def document(self) -> dict[str, Any]:
        """As chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters or EMPTY_SCHEMA}
        return {"type": "function", "function": function}


EMPTY_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Call:
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CallGrammar:
    """The right-hand side of a rule in llguidance's Lark, for all calls of a reply. It names `schemas` (JSON Schemas) as @NAME,
    and `rules` that come with it."""

    rule: str
    schemas: dict[str, dict[str, Any]]
    rules: str = ""


class ToolFormat(Protocol):
    """`opens` are the markers that start a section; `bare` sections may also start a reply, with a `{`. `markers` are all that
    it is made of."""

    @property
    def markers(self) -> tuple[str, ...]: ...

    @property
    def opens(self) -> tuple[str, ...]: ...

    @property
    def bare(self) -> bool: ...

    def section_end(self, text: str, searched: int) -> int | None:
        """Where the section that `text` starts with ends; None: not in here. The first `searched` characters were looked at
        before, in vain. The answer depends on the section alone, not on what comes after it."""
        ...

    def calls(self, section: str, tools: Mapping[str, Tool]) -> list[Call]:
        """The calls of a section, which may lack its closing marker where the reply ended; none where it is not well formed."""
        ...

    def grammar(self, tools: Sequence[Tool], several: bool) -> CallGrammar:
        """One call of one of `tools`, or with `several` one or more."""
        ...

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Calls as the model would have written them, for a template that has no place for them."""
        ...


def parse_json(text: str) -> Any:
    """Strict JSON, else ValueError."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is not a JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def call_of(value: Any) -> Call | None:
    """`{"name": ..., "arguments" or "parameters": {...}}` to a call; the arguments may be spelled as a string."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError:
            return None
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def schema_of(tool: Tool) -> dict[str, Any]:
    """What a forced call's arguments are held to. A schema that is not declared strict is followed as far as it can be."""
    schema = dict(tool.parameters or EMPTY_SCHEMA)
    schema.setdefault("type", "object")
    return schema if tool.strict else {**schema, "x-guidance": {"lenient": True}}


def quoted(text: str) -> str:
    """A literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def one_of(tools: Sequence[Tool], before: str, between: str, after: str) -> CallGrammar:
    """`before` NAME `between` ARGUMENTS `after`, for each tool; NAME as it stands in JSON."""
    schemas = {f"arguments_{number}": schema_of(tool) for number, tool in enumerate(tools)}
    arms = [
        f"{quoted(before + json.dumps(tool.name, ensure_ascii=False)[1:-1] + between)} @{name} {quoted(after)}"
        for tool, name in zip(tools, schemas, strict=True)
    ]
    return CallGrammar("(" + " | ".join(arms) + ")", schemas)
