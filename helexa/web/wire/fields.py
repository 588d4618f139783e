"""Request fields in one of three classes, and the parser that follows from a table of them (tables.py). Pure.

- acts: it changes the reply, through `check`.
- inert: it carries no instruction to the engine; it is checked and has no effect.
- refused: its meaning is not served, so a 400 names it; `neutral` values, which ask for nothing, pass.

`null` is absent, for every field. docs/api.md has the table as `markdown` prints it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from helexa.errors import RequestError
from helexa.web.wire.checks import Bool, Check

Kind = Literal["acts", "inert", "refused"]


@dataclass(frozen=True)
class Field:
    name: str
    kind: Kind
    doc: str  # for `refused`: why
    check: Check | None = None
    required: bool = False
    neutral: tuple[Any, ...] = ()


def acts(name: str, check: Check, doc: str, required: bool = False) -> Field:
    return Field(name, "acts", doc, check, required)


def inert(name: str, check: Check, doc: str) -> Field:
    return Field(name, "inert", doc, check)


def refused(name: str, why: str, *neutral: Any) -> Field:
    return Field(name, "refused", why, neutral=neutral)


def parse(body: Mapping[str, Any], table: tuple[Field, ...]) -> dict[str, Any]:
    """The acting and inert fields that are given, checked. Raises RequestError naming the first field that does not pass."""
    by_name = {field.name: field for field in table}
    values: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        field = by_name.get(name)
        if field is None:
            raise unknown(name, by_name)
        if field.check is None:
            if not any(_same(value, neutral) for neutral in field.neutral):
                raise RequestError("unsupported_parameter", f"`{name}` is not supported: {field.doc}", name)
            continue
        values[name] = checked(name, value, field.check)
    for field in table:
        if field.required and field.name not in values:
            raise RequestError(
                "invalid_value", f"`{field.name}` is required: {field.check.says if field.check else ''}", field.name
            )
    return values


def checked(param: str, value: Any, check: Check) -> Any:
    try:
        return check(value)
    except ValueError:
        raise RequestError("invalid_value", f"`{param}` must be {check.says}, not {shown(value)}", param) from None


def flag(param: str, value: Any) -> bool:
    """true or false; null is false."""
    return value is not None and bool(checked(param, value, Bool()))


def unknown(param: str, known: Mapping[str, Any]) -> RequestError:
    prefix, dot, leaf = param.rpartition(".")
    close = difflib.get_close_matches(leaf[:64], known, n=1)
    hint = f"did you mean `{prefix}{dot}{close[0]}`?" if close else "docs/api.md lists the fields"
    return RequestError("unknown_parameter", f"unknown field `{param[:128]}`; {hint}", param[:128])


def shown(value: Any) -> str:
    """A value in an error: JSON, short."""
    if isinstance(value, (dict, list)):
        return f"this {'object' if isinstance(value, dict) else 'array'} of {len(value)}"
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 2**80 else "so large a number"
    return text if len(text) <= 64 else text[:61] + "..."


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON: true is not 1, 1.0 is."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def markdown(table: tuple[Field, ...]) -> str:
    """The table for people: a row a field."""
    lines = ["| field | class | values | meaning |", "|---|---|---|---|"]
    for field in table:
        if field.check is not None:
            values = field.check.says
        else:
            values = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral) or "none"
        lines.append(f"| `{field.name}` | {field.kind}{', required' if field.required else ''} | {values} | {field.doc} |")
    return "\n".join(lines) + "\n"
