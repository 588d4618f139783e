"""What every response carries, whatever made it."""

from __future__ import annotations

import re
import secrets
from typing import Any

from falcon.asgi import Request, Response

from helexa.errors import RequestError
from helexa.web.connection import SCOPE_KEY

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
ALWAYS_SERVED = frozenset({"/health", "/ready"})


class RequestIds:
    """`x-request-id`: the client's own where it is a plain word, else one made here. `context.hex` is always this server's."""

    async def process_request(self, req: Request, resp: Response) -> None:
        req.context.hex = secrets.token_hex(16)
        given = req.get_header("x-request-id") or ""
        req.context.req_id = given if REQUEST_ID.fullmatch(given) else f"req-{req.context.hex}"

    async def process_response(self, req: Request, resp: Response, resource: object, req_succeeded: bool) -> None:
        for name in ("x-request-id", "request-id"):  # OpenAI's name and Anthropic's
            resp.set_header(name, getattr(req.context, "req_id", ""))


class ConnectionCap:
    async def process_request(self, req: Request, resp: Response) -> None:
        connection = req.scope[SCOPE_KEY]
        if not connection.admitted and req.path not in ALWAYS_SERVED:
            raise RequestError(
                "too_many_connections", "this worker serves as many connections as server.max_connections allows; try again later"
            )


def context_of(req: Request) -> tuple[str, str]:
    """(req_id, hex): the id people see, and the part of ids made here."""
    context: Any = req.context
    return context.req_id, context.hex
