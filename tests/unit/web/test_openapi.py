"""openapi.json, which is kept by hand, says what the tables say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import helexa.web
from helexa.config import Config
from helexa.errors import ERRORS
from helexa.web.app import create_app
from helexa.web.wire import tables

DESCRIPTION: dict[str, Any] = json.loads((Path(helexa.web.__file__).parent / "openapi.json").read_text(encoding="utf-8"))


def schema_of(path: str) -> dict[str, Any]:
    content = DESCRIPTION["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = content["$ref"].rpartition("/")[2]
    return dict(DESCRIPTION["components"]["schemas"][name])


@pytest.mark.parametrize("path", tables.ALL)
def test_bodies_have_the_tables_fields(path: str) -> None:
    """Names, which are required, and for refused ones the values that pass; nothing else is allowed."""
    schema = schema_of(path)
    properties = schema["properties"]
    assert set(properties) == {field.name for field in tables.ALL[path]} and schema["additionalProperties"] is False
    assert set(schema["required"]) == {field.name for field in tables.ALL[path] if field.required}
    for field in tables.ALL[path]:
        if field.kind == "refused":
            assert properties[field.name]["enum"] == [*field.neutral, None], field.name
        else:
            assert properties[field.name]["description"] == field.doc, field.name


def test_every_reference_leads_somewhere() -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DESCRIPTION)))
    assert names == set(DESCRIPTION["components"]["schemas"])


def test_every_route_is_described(tmp_path: Path) -> None:
    """Each path that is described is served, and each that is served is described under one of its names."""
    app = create_app(Config(), tmp_path)
    for path, methods in DESCRIPTION["paths"].items():
        found = app._router.find(path.replace("{name}", "x"))
        assert found is not None, path
        assert {
            method for method, responder in found[1].items() if method in ("GET", "POST") and responder.__name__.startswith("on_")
        } == {method.upper() for method in methods}


def test_every_error_status_is_described() -> None:
    """Whatever status an error has, the generating routes name it."""
    statuses = {str(mapping.status) for mapping in ERRORS.values()} - {"409"}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        assert statuses <= set(DESCRIPTION["paths"][path]["post"]["responses"])
