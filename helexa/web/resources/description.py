"""/openapi.json: this interface, described for machines."""

from __future__ import annotations

from importlib import resources

from falcon.asgi import Request, Response


class OpenApi:
    def __init__(self) -> None:
        self._data = resources.files("helexa.web").joinpath("openapi.json").read_bytes()

    async def on_get(self, req: Request, resp: Response) -> None:
        resp.content_type = "application/json"
        resp.data = self._data
