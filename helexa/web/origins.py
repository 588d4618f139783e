"""Who may ask from a browser: the Host that a request names, and the origins whose pages may read replies. No authentication."""

from __future__ import annotations

import ipaddress

from falcon.asgi import Request, Response

from helexa.config_tables import Server
from helexa.errors import RequestError
from helexa.web.middleware import ALWAYS_SERVED

METHODS = "GET, POST, OPTIONS"
EXPOSED = "x-request-id, request-id, x-helexa-seed, Retry-After, x-should-retry"
MAX_AGE_S = "600"


class HostCheck:
    """On a loopback address a name that is not loopback's comes from a page that was led here by its DNS: it gets a 403."""

    def __init__(self, server: Server) -> None:
        self._checks = is_loopback(server.host)
        self._allowed = {name.lower() for name in server.allowed_hosts}

    async def process_request(self, req: Request, resp: Response) -> None:
        given = req.get_header("Host")
        if not self._checks or given is None or req.path in ALWAYS_SERVED:
            return
        name = host_name(given)
        if not is_loopback(name) and name not in self._allowed:
            raise RequestError(
                "host_not_allowed", f"the host name `{name[:128]}` is not served; if it is yours, add it to server.allowed_hosts"
            )


class Cors:
    """`server.cors_origins` lists origins as browsers send them; `*` is every origin."""

    def __init__(self, server: Server) -> None:
        self._origins = frozenset(server.cors_origins)

    async def process_request(self, req: Request, resp: Response) -> None:
        """Answers a preflight."""
        if req.method == "OPTIONS" and self._allows(req) and req.get_header("Access-Control-Request-Method"):
            resp.status = 204
            resp.set_header("Access-Control-Allow-Methods", METHODS)
            resp.set_header("Access-Control-Allow-Headers", req.get_header("Access-Control-Request-Headers") or "*")
            resp.set_header("Access-Control-Max-Age", MAX_AGE_S)
            resp.complete = True

    async def process_response(self, req: Request, resp: Response, resource: object, req_succeeded: bool) -> None:
        if self._allows(req):
            resp.set_header("Access-Control-Allow-Origin", req.get_header("Origin") or "")
            resp.set_header("Access-Control-Expose-Headers", EXPOSED)
            resp.append_header("Vary", "Origin")

    def _allows(self, req: Request) -> bool:
        origin = req.get_header("Origin")
        return origin is not None and ("*" in self._origins or origin in self._origins)


def host_name(header: str) -> str:
    """The name in a Host header, without its port, in lower case."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
