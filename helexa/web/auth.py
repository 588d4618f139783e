"""API keys at the door: who asks. What a key may ask is the scheduler's to say, which sees all web workers' requests."""

from __future__ import annotations

from typing import Any

from falcon.asgi import Request, Response

from helexa.config_tables import Keys
from helexa.errors import RequestError
from helexa.keys.key_book import KeyBook
from helexa.keys.key_file import KeyFileError
from helexa.web.middleware import ALWAYS_SERVED

MOST_TOKEN_CHARACTERS = 256


class Auth:
    """With a key file, every route needs a key but those that are always served, or opened."""

    def __init__(self, keys: Keys) -> None:
        self._book = KeyBook(keys.file)
        self._open = ALWAYS_SERVED | frozenset(keys.open_routes)

    async def process_request(self, req: Request, resp: Response) -> None:
        req.context.key = ""
        if not self._book.enabled or req.path in self._open:
            return
        token = given_token(req)
        try:
            key = self._book.find(token) if token else None
        except KeyFileError:
            raise RequestError(
                "keys_unavailable", "the server cannot read its key file, so it lets nobody in; its log says what to mend"
            ) from None
        if key is None:
            resp.set_header("WWW-Authenticate", "Bearer")
            what = "this API key is not known here, or was revoked" if token else "an API key is needed"
            raise RequestError("invalid_api_key", f"{what}; send one as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        req.context.key = key.id


def given_token(req: Request) -> str:
    """The key that a request carries, in OpenAI's header or Anthropic's; empty where there is none."""
    scheme, _, token = (req.get_header("Authorization") or "").partition(" ")
    if scheme.lower() != "bearer":
        token = ""
    found = token.strip() or (req.get_header("x-api-key") or "").strip()
    return found if len(found) <= MOST_TOKEN_CHARACTERS else ""


def key_of(req: Request) -> str:
    """The id of the key that a request came with; empty where none is needed."""
    context: Any = req.context
    return str(getattr(context, "key", ""))
