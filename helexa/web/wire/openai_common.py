"""What OpenAI's endpoints share: sampling options, the reply's shape, usage, and how tokens are written down. Pure."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from helexa.errors import RequestError
from helexa.text.grammar import OutputFormat
from helexa.web.events import Token, Usage
from helexa.web.request import Options, Shape
from helexa.web.wire import checks
from helexa.web.wire.fields import checked, unknown
from helexa.web.wire.output_format import output_format
from helexa.web.wire.reply import Vocabulary

LEAST_TOP_P = 1e-9  # for top_p 0, which like any value under 1 / vocabulary leaves the likeliest token alone


def options(values: Mapping[str, Any], max_tokens: int | None, logprobs: int = -1, format: OutputFormat | None = None) -> Options:
    """Of checked fields; `format` where the endpoint has its own field for it."""
    top_k, top_p = values.get("top_k"), values.get("top_p")
    return Options(
        max_tokens=max_tokens,
        min_tokens=values.get("min_tokens", 0),
        temperature=values.get("temperature"),
        top_k=None if top_k is None else max(0, top_k),
        top_p=None if top_p is None else max(top_p, LEAST_TOP_P),
        min_p=values.get("min_p"),
        repetition_penalty=values.get("repetition_penalty"),
        presence_penalty=values.get("presence_penalty", 0.0),
        frequency_penalty=values.get("frequency_penalty", 0.0),
        logit_bias=values.get("logit_bias", {}),
        stop=values.get("stop", []),
        stop_token_ids=values.get("stop_token_ids", []),
        ignore_eos=values.get("ignore_eos", False),
        logprobs=logprobs,
        seed=values.get("seed"),
        n=values.get("n", 1),
        priority=values.get("priority", "interactive"),
        cache_salt=values.get("cache_salt", ""),
        format=format or output_format(values),
        thinking_budget=values.get("thinking_budget"),
    )


def shape(values: Mapping[str, Any], include_thinking: bool = False) -> Shape:
    stream = values.get("stream", False)
    return Shape(
        stream=stream,
        include_usage=_include_usage(values.get("stream_options"), stream),
        token_ids=values.get("return_token_ids", False),
        token_sha=values.get("return_token_sha", False),
        echo=values.get("echo", False),
        service_tier="service_tier" in values,
        include_thinking=include_thinking,
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


def usage_document(usage: Usage, reasoning_tokens: int = 0) -> dict[str, Any]:
    document = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens:
        document["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return document


def error_document(error: RequestError) -> dict[str, Any]:
    """OpenAI's envelope."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def logprob_document(vocabulary: Vocabulary, token: Token, best: int, with_bytes: bool = True) -> dict[str, Any]:
    """An output token's log probability and those of the `best` likeliest at its place. The token must have them."""
    assert token.logprobs is not None

    def entry(text: str, id: int, logprob: float) -> dict[str, Any]:
        document: dict[str, Any] = {"token": text, "logprob": logprob}
        return {**document, "bytes": list(vocabulary.token_bytes(id))} if with_bytes else document

    pairs = list(zip(token.logprobs.ids, token.logprobs.logprobs, strict=True))[:best]
    top = [entry(candidate_text(vocabulary, id), id, logprob) for id, logprob in pairs]
    return {**entry(sampled_text(vocabulary, token.id), token.id, token.logprobs.logprob), "top_logprobs": top}


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
