"""/metrics: Prometheus text, which the scheduler owns and gives out on its control socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from falcon.asgi import Request, Response

from helexa.errors import RequestError
from helexa.web.services import Services
from ipc import endpoints

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self, services: Services) -> None:
        self._socket = endpoints.control_socket(services.run_dir)

    async def on_get(self, req: Request, resp: Response) -> None:
        try:
            resp.text = await asyncio.wait_for(ask(self._socket), TIMEOUT_S)
        except (OSError, ValueError, KeyError, TypeError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise RequestError(
                "scheduler_down", f"the scheduler does not give its metrics ({reason}); it is starting or being restarted"
            ) from None
        resp.content_type = CONTENT_TYPE


async def ask(socket: Path) -> str:
    """One JSON line each way. Raises OSError, ValueError, KeyError or TypeError when it is not answered as agreed."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_ANSWER_BYTES)
    try:
        writer.write(b'{"v":1,"cmd":"metrics"}\n')
        answer = json.loads(await reader.readline())
        if answer["ok"] is not True:
            raise ValueError(answer.get("error", "refused"))
        return str(answer["text"])
    finally:
        writer.close()
