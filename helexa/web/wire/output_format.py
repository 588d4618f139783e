"""The fields that say what a reply must be, to an OutputFormat. A request may use one of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.text.grammar import Kind, OutputFormat
from helexa.web.wire import checks
from helexa.web.wire.checks import Check
from helexa.web.wire.fields import checked, flag, shown, unknown

_FIELDS: dict[str, Kind] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json_schema",
}
# Of a response format's fields `name`, `description` and `strict` have no effect: the model is held to the schema in any case.
_RESPONSE = ("type", "json_schema", "schema", "name", "description", "strict")
_STRUCTURED: dict[str, tuple[Kind, Check]] = {
    "json": ("json_schema", checks.Schema()),
    "json_object": ("json_object", checks.Bool()),
    "regex": ("regex", checks.Text(8192, 1)),
    "choice": ("choice", checks.Strings(1024)),
    "grammar": ("grammar", checks.Text(32768, 1)),
}


def output_format(values: Mapping[str, Any]) -> OutputFormat | None:
    """Of checked fields; raises RequestError where two contradict each other."""
    found = [OutputFormat(kind, values[name], name) for name, kind in _FIELDS.items() if values.get(name) not in (None, "", [])]
    found += _structured(values.get("structured_outputs"))
    response = response_format(values.get("response_format"), "response_format")
    found += [response] if response is not None else []
    if len(found) > 1:
        names = " and ".join(f"`{format.param}`" for format in found[:2])
        raise RequestError("invalid_value", f"{names} both say what the reply must be; give one", found[1].param)
    return found[0] if found else None


def _structured(given: dict[str, Any] | None) -> list[OutputFormat]:
    formats = []
    for name, value in (given or {}).items():
        param = f"structured_outputs.{name}"
        if value is None or value is False:
            continue
        if name not in _STRUCTURED:
            raise unknown(param, _STRUCTURED)
        kind, check = _STRUCTURED[name]
        formats.append(OutputFormat(kind, checked(param, value, check), param))
    return formats


def response_format(given: Any, place: str) -> OutputFormat | None:
    """OpenAI's object; on chat the schema is one level further down. llama.cpp's `json_object` with a schema passes too."""
    if given is None:
        return None
    format = _known(checked(place, given, checks.Object()), place)
    kind = format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = format.get("schema")
        if schema is None:
            return OutputFormat("json_object", None, place)
        return OutputFormat("json_schema", checked(f"{place}.schema", schema, checks.Object()), f"{place}.schema")
    if kind != "json_schema":
        raise RequestError(
            "invalid_value", f"`{place}.type` must be text, json_object or json_schema, not {shown(kind)}", f"{place}.type"
        )
    if "json_schema" in format:
        place = f"{place}.json_schema"
        format = _known(checked(place, format["json_schema"], checks.Object()), place)
    schema = format.get("schema")
    if not isinstance(schema, dict):
        raise RequestError(
            "invalid_value", f"`{place}.schema` must be a JSON Schema, an object, not {shown(schema)}", f"{place}.schema"
        )
    return OutputFormat("json_schema", schema, f"{place}.schema")


def _known(format: dict[str, Any], place: str) -> dict[str, Any]:
    for name, value in format.items():
        if name not in _RESPONSE and value is not None:
            raise unknown(f"{place}.{name}", dict.fromkeys(_RESPONSE))
    flag(f"{place}.strict", format.get("strict"))
    for name in ("name", "description"):
        checked(f"{place}.{name}", format.get(name) or "", checks.Text(2**16))
    return format
