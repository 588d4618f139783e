"""A request's body: bounded bytes, then strict JSON. Raises RequestError; what passes is a dict of plain, finite values."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from falcon.asgi import Request

from helexa.errors import RequestError

MAX_DEPTH = 64
DISCARD_FACTOR = 4  # a body over the limit is read and dropped up to so many times the limit, so that the 413 can be read
THREAD_BYTES = 64 * 1024  # larger bodies are parsed off the event loop


async def read_object(req: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in the body."""
    content_type = (req.content_type or "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestError("unsupported_media_type", f"the body must be application/json, not `{content_type or 'untyped'}`")
    encoding = (req.get_header("Content-Encoding") or "identity").lower()
    if encoding != "identity":
        raise RequestError(
            "unsupported_media_type", f"the body's content-encoding `{encoding}` is not served; send it uncompressed"
        )
    data = await _read(req, max_bytes)
    return parse_object(data) if len(data) < THREAD_BYTES else await asyncio.to_thread(parse_object, data)


async def _read(req: Request, max_bytes: int) -> bytes:
    too_large = RequestError("body_too_large", f"the body is larger than {max_bytes} bytes (server.max_body_bytes)")
    if (req.content_length or 0) > DISCARD_FACTOR * max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in req.stream:
        size += len(chunk)
        if size > DISCARD_FACTOR * max_bytes:
            break
        if size <= max_bytes:
            chunks.append(chunk)
    if size > max_bytes:
        raise too_large
    return b"".join(chunks)


def parse_object(data: bytes) -> dict[str, Any]:
    """Strict JSON (RFC 8259): UTF-8, no duplicate key, no NaN or infinity, no lone surrogate, at most MAX_DEPTH levels."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise RequestError("invalid_json", f"the body is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise RequestError("invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise RequestError("invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("invalid_json", "the body must be a JSON object")
    _check(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key `{twice[:64]}` is given twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:32]} is too large")
    return value


def _check(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            items = container if isinstance(container, list) else [*container.keys(), *container.values()]
            for item in items:
                if isinstance(item, (dict, list)):
                    inner.append(item)
                elif isinstance(item, str) and not item.isascii():
                    _check_text(item)
        if not inner:
            return
        level = inner
    raise RequestError("invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError("invalid_json", "a string holds half of a surrogate pair, which is not a character") from None
