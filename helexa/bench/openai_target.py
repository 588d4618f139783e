"""A server that speaks OpenAI's format, as a target: the bodies it is sent, and what its events say."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from helexa.bench.load import Address, Exchange, exchange, paced
from helexa.bench.pacing import Pace
from helexa.bench.timing import Run, Sample
from helexa.errors import StartError

Route = Literal["completions", "chat"]
PATHS: Mapping[Route, str] = {"completions": "/completions", "chat": "/chat/completions"}

# By what /v1/models says of its owner: fields beside OpenAI's that make replies equally long, and keep or drop cached prompts.
EXTRA_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "helexa": {"ignore_eos": True},
    "vllm": {"ignore_eos": True},
    "llamacpp": {"ignore_eos": True},
}


@dataclass(frozen=True)
class Load:
    """What every request asks for. `cached`: prompts begin alike, and the server may use that."""

    route: Route
    output_tokens: int
    temperature: float
    cached: bool


class OpenAITarget:
    """`kind` is the owner that /v1/models names: helexa, vllm, llamacpp, ..."""

    def __init__(self, url: str, load: Load, model: str | None = None, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Asks the server what it serves; `headers` go with every request. Raises StartError where it does not answer."""
        self.url = url
        self._headers = headers
        self._address = Address.parse(url)
        self._load = load
        served = self._models()
        entry = next((item for item in served if item["id"] == model), None) if model else served[0]
        if entry is None:
            raise StartError(f"{url} does not serve {model}; it serves {', '.join(str(item['id']) for item in served)}")
        self.model = str(entry["id"])
        self.kind = str(entry.get("owned_by", "unknown"))

    @property
    def label(self) -> str:
        return f"{self.kind} {self.url}"

    @property
    def same_length(self) -> bool:
        """Whether it goes on past the end of sequence, so that every reply has the length asked for."""
        return self.kind in EXTRA_FIELDS

    def describe(self) -> dict[str, Any]:
        return {"transport": "http", "kind": self.kind, "model": self.model, "route": self._load.route}

    def run(self, prompts: Sequence[str], pace: Pace) -> Run:
        bodies = [json.dumps(body_of(prompt, self.model, self.kind, self._load)).encode() for prompt in prompts]

        async def ask(body: bytes) -> Exchange:
            return await exchange(self._address, "POST", PATHS[self._load.route], body, self._headers)

        async def all_of_them() -> tuple[list[Exchange], float, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            seen = await paced(bodies, pace, ask)
            return seen, time.perf_counter() - wall, time.process_time() - cpu

        seen, wall_s, cpu_s = asyncio.run(all_of_them())
        return Run([sample_of(item) for item in seen], wall_s, cpu_s)

    def _models(self) -> list[dict[str, Any]]:
        seen = asyncio.run(exchange(self._address, "GET", "/models", headers=self._headers))
        if seen.error or seen.status != 200:
            hint = (
                "; name the variable that holds its API key with --api-key-env, or --vs-api-key-env" if seen.status == 401 else ""
            )
            raise StartError(f"{self.url} does not answer: {seen.error or f'status {seen.status} on /v1/models'}{hint}")
        try:
            data = json.loads(seen.body)["data"]
            if not data or not all(isinstance(item["id"], str) for item in data):
                raise KeyError("id")
        except (ValueError, KeyError, TypeError):
            raise StartError(f"{self.url} serves no model yet, or is no OpenAI-compatible server") from None
        return list(data)


def body_of(prompt: str, model: str, kind: str, load: Load) -> dict[str, Any]:
    asked = {"prompt": prompt} if load.route == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    caching = {"cache_prompt": load.cached} if kind == "llamacpp" else {}
    return {
        "model": model,
        **asked,
        "max_tokens": load.output_tokens,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **EXTRA_FIELDS.get(kind, {}),
        **caching,
    }


def sample_of(seen: Exchange) -> Sample:
    """Tokens by the server's own usage; where it sends none, a piece of output counts as a token."""
    arrivals: list[float] = []
    usage: Mapping[str, Any] = {}
    error = seen.error
    done = False
    if not error and seen.status != 200:
        error = f"status {seen.status}: {seen.body[:300].decode(errors='replace')}"
    for when, data in seen.events:
        if data == b"[DONE]":
            done = True
            continue
        chunk = _object(data)
        if chunk is None:
            error = error or f"not a JSON object: {data[:100].decode(errors='replace')}"
            continue
        if "error" in chunk:
            error = error or json.dumps(chunk["error"])[:300]
        if any(_text(choice) for choice in chunk.get("choices") or []):
            arrivals.append(when)
        usage = chunk.get("usage") or usage
    if not error and not done:
        error = "the stream ended without [DONE]"
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    output = usage.get("completion_tokens", len(arrivals))
    return Sample(seen.sent, arrivals, seen.ended, usage.get("prompt_tokens", 0), cached, output, error)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        chunk = json.loads(data)
    except ValueError:
        return None
    return chunk if isinstance(chunk, dict) else None


def _text(choice: Mapping[str, Any]) -> str:
    """A piece of output: text, a message's content, or its reasoning."""
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
