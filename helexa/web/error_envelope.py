"""Every error in its route's envelope, OpenAI's or on its routes Anthropic's, with the headers that steer retries."""

from __future__ import annotations

import logging
import math
from typing import Any

import falcon
from falcon.asgi import Request, Response

from helexa.errors import RequestError
from helexa.web.wire import anthropic_messages
from helexa.web.wire.openai_common import error_document

log = logging.getLogger("helexa.web")

# Seconds for Retry-After where the error does not name its own. Every 503 has one.
RETRY_AFTER_S: dict[str, float] = {"model_loading": 2, "no_worker": 2, "shutting_down": 5, "model_failed": 60}
RETRY_AFTER_DEFAULT_S = 1.0

# Clients retry 409 and 5xx on their own, twice. They are told to only where waiting helps and no load is added to a server that
# refuses load.
RETRY = frozenset({"model_loading", "no_worker", "scheduler_down", "shutting_down"})

_OF_STATUS = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 415: "unsupported_media_type"}


def is_anthropic(path: str) -> bool:
    return path.removeprefix("/v1").startswith("/messages")


def retry_headers(error: RequestError) -> dict[str, str]:
    headers = {}
    if error.status in (429, 503):
        seconds = RETRY_AFTER_S.get(error.code, RETRY_AFTER_DEFAULT_S) if error.retry_after is None else error.retry_after
        headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    if error.status in (409, 429) or error.status >= 500:
        headers["x-should-retry"] = "true" if error.code in RETRY else "false"
    return headers


def write(req: Request, resp: Response, error: RequestError) -> None:
    """Makes the response this error's."""
    resp.status = error.status
    envelope = anthropic_messages.error_envelope if is_anthropic(req.path) else error_document
    resp.media = envelope(error)
    resp.set_headers(retry_headers(error))


async def on_request_error(req: Request, resp: Response, error: RequestError, params: dict[str, Any]) -> None:
    write(req, resp, error)


async def on_http_error(req: Request, resp: Response, error: falcon.HTTPError, params: dict[str, Any]) -> None:
    """Falcon's own errors: no such route, wrong method, a header it cannot read."""
    code = _OF_STATUS.get(error.status_code, "invalid_value" if error.status_code < 500 else "internal_error")
    if code == "not_found":
        message = f"no route {req.method} {req.path[:128]}; the routes are in docs/api.md"
    elif code == "method_not_allowed":
        message = f"{req.path[:128]} does not take {req.method}"
    else:
        message = error.description or error.title or str(error)
    write(req, resp, RequestError(code, message))
    resp.set_headers(error.headers or {})


async def on_exception(req: Request, resp: Response, error: Exception, params: dict[str, Any]) -> None:
    req_id = getattr(req.context, "req_id", "-")
    log.error("req_id=%s: unexpected error", req_id, exc_info=error)
    write(req, resp, RequestError("internal_error", f"unexpected error; the server's log has it under req_id {req_id}"))
