"""What OpenAI's two text endpoints share: sampling options, the reply's shape, usage, and how tokens are written down. Pure."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from helexa.errors import RequestError
from helexa.web.events import Event, Token, Usage
from helexa.web.request import Options, Shape
from helexa.web.wire import checks
from helexa.web.wire.fields import checked, unknown

LEAST_TOP_P = 1e-9  # for top_p 0, which like any value under 1 / vocabulary leaves the likeliest token alone


class Vocabulary(Protocol):
    def token_bytes(self, id: int) -> bytes: ...

    def token_text(self, id: int) -> str: ...


class Reply(Protocol):
    """One reply in one wire format, made from the events of its choices."""

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """The streamed documents that this event makes; often none."""
        ...

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]: ...

    def add(self, event: Event) -> None:
        """Collects the event for `document`."""
        ...

    def document(self, usage: Usage) -> dict[str, Any]: ...


def options(values: Mapping[str, Any], max_tokens: int | None, logprobs: int) -> Options:
    top_p = values.get("top_p", 1.0)
    return Options(
        max_tokens=max_tokens,
        min_tokens=values.get("min_tokens", 0),
        temperature=values.get("temperature"),
        top_k=max(0, values.get("top_k", 0)),
        top_p=top_p if top_p > 0 else LEAST_TOP_P,
        min_p=values.get("min_p", 0.0),
        repetition_penalty=values.get("repetition_penalty", 1.0),
        presence_penalty=values.get("presence_penalty", 0.0),
        frequency_penalty=values.get("frequency_penalty", 0.0),
        logit_bias=values.get("logit_bias", {}),
        stop=values.get("stop", []),
        stop_token_ids=values.get("stop_token_ids", []),
        ignore_eos=values.get("ignore_eos", False),
        logprobs=logprobs,
        seed=values.get("seed"),
        n=values.get("n", 1),
    )


def shape(values: Mapping[str, Any]) -> Shape:
    stream = values.get("stream", False)
    return Shape(
        stream=stream,
        include_usage=_include_usage(values.get("stream_options"), stream),
        token_ids=values.get("return_token_ids", False),
        token_sha=values.get("return_token_sha", False),
        echo=values.get("echo", False),
        service_tier="service_tier" in values,
    )


def _include_usage(given: dict[str, Any] | None, stream: bool) -> bool:
    if given is None:
        return False
    if not stream:
        raise RequestError("invalid_value", "`stream_options` needs `stream`: true", "stream_options")
    known = {"include_usage", "include_obfuscation", "continuous_usage_stats"}
    for name, value in given.items():
        param = f"stream_options.{name}"
        if value is None:
            continue
        if name not in known:
            raise unknown(param, dict.fromkeys(known))
        if checked(param, value, checks.Bool()) and name != "include_usage":
            raise RequestError(
                "unsupported_parameter", f"`{param}` is not supported: chunks carry neither padding nor running usage", param
            )
    return given.get("include_usage") is True


def usage_document(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def token_sha(ids: Sequence[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


def sampled_text(vocabulary: Vocabulary, id: int) -> str:
    """A token of the output, as part of the text: U+FFFD for bytes that are no character alone, nothing for a control token."""
    return vocabulary.token_bytes(id).decode("utf-8", "replace")


def candidate_text(vocabulary: Vocabulary, id: int) -> str:
    """A token among the likeliest: a control token has its name."""
    return sampled_text(vocabulary, id) or vocabulary.token_text(id)


def tokens_with_logprobs(tokens: Sequence[Token]) -> list[Token]:
    return [token for token in tokens if token.logprobs is not None]
