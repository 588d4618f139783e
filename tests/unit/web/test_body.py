"""Bodies: strict JSON within bounds."""

from __future__ import annotations

import json

import pytest

from helexa.errors import RequestError
from helexa.web.body import MAX_DEPTH, parse_object


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"3",
        b"\xff\xfe{}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"a": ["\\ud800"]}',
        b'{"a": 1} {"b": 2}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    ],
    ids=range(19),
)
def test_what_is_not_strict_json_is_refused(data: bytes) -> None:
    """Each is a 400 invalid_json: none reaches the parsers, none raises anything else."""
    with pytest.raises(RequestError) as caught:
        parse_object(data)
    assert caught.value.code == "invalid_json" and caught.value.status == 400


def test_what_is_strict_json_passes() -> None:
    """Up to the depth limit, with escapes, surrogate pairs and large whole numbers."""
    deepest = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert parse_object(deepest) == json.loads(deepest)
    assert parse_object('{"a": "é \\ud83d\\ude00", "b": 1e3, "c": 123456789012345678901234567890}'.encode()) == {
        "a": "é 😀",
        "b": 1000.0,
        "c": 123456789012345678901234567890,
    }
