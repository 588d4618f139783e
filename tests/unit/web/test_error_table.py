"""Every error's status, types and retry headers, as people are told them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa.errors import ERRORS, RequestError
from helexa.web.error_envelope import is_anthropic, retry_headers
from helexa.web.wire.anthropic_messages import error_envelope

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", ERRORS)
def test_the_documentation_has_each_error(code: str) -> None:
    """docs/api.md has a row with the code, status, OpenAI's type, whether to retry, and Anthropic's type."""
    error = RequestError(code, "m")
    retry = {"true": "yes", "false": "no"}.get(retry_headers(error).get("x-should-retry", ""), "")
    anthropic = error_envelope(error)["error"]["type"]
    assert f"| `{code}` | {error.status} | {error.type} | {retry} | {anthropic} |" in DOCUMENT


@pytest.mark.parametrize("code", ERRORS)
def test_retry_headers(code: str) -> None:
    """Overload says when to come back; whatever clients would retry on their own says whether they should."""
    error = RequestError(code, "m")
    headers = retry_headers(error)
    assert ("Retry-After" in headers) == (error.status in (429, 503))
    assert ("x-should-retry" in headers) == (error.status in (409, 429) or error.status >= 500)


def test_whose_routes_are_whose() -> None:
    assert all(map(is_anthropic, ("/v1/messages", "/messages", "/v1/messages/count_tokens")))
    assert not any(map(is_anthropic, ("/v1/chat/completions", "/v1/models", "/", "/metrics")))
