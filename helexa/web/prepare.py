"""From a wire request to one the engine takes: prompt ids, defaults, seeds, and every check that needs the model. Pure."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Sequence
from typing import Literal, TypeVar

from helexa.config_tables import Sampling
from helexa.errors import RequestError
from helexa.text.generation_defaults import GenerationDefaults
from helexa.text.grammar import Context, compose
from helexa.text.output_parser import ParseRules
from helexa.web.chat_prompt import ChatStart, Thinking, start_chat
from helexa.web.model_text import ModelText
from helexa.web.request import ChatPrompt, GenerationRequest, Options, Prompt, TextPrompt, WireRequest
from ipc.messages import ModelInfo, SamplingParams

SEED_MASK = 2**63 - 1

T = TypeVar("T")


def prepare(wire: WireRequest, info: ModelInfo, text: ModelText, sampling: Sampling) -> list[GenerationRequest]:
    """One request a prompt. Slow: renders and tokenises. Raises RequestError."""
    check_ids("stop_token_ids", wire.options.stop_token_ids, info.vocab)
    check_ids("logit_bias", list(wire.options.logit_bias), info.vocab)
    drawn = secrets.randbits(63)
    return [_one(prompt, wire, info, text, sampling, drawn) for prompt in wire.prompts]


def _one(
    prompt: Prompt, wire: WireRequest, info: ModelInfo, text: ModelText, sampling: Sampling, drawn: int
) -> GenerationRequest:
    options, echo = wire.options, ""
    if isinstance(prompt, ChatPrompt):
        param, start = "messages", start_chat(prompt, options, wire.shape.include_thinking, text, info.context)
    else:
        param, (ids, echo) = "prompt", encode_prompt(prompt, info, text, wire.shape.echo)
        start = ChatStart(ids, ParseRules(), compose(options.format, None, Context(None, "over", {})), Thinking(), "")
    seed = request_seed(options.seed, start.ids, sampling.unseeded, drawn)
    return GenerationRequest(
        model=info.name,
        prompt_ids=start.ids,
        prompt_text=echo,
        params=_params(options, text.defaults, sampling, _room(options, len(start.ids), info.context, param), start),
        seed=seed,
        seeds=[choice_seed(seed, choice) for choice in range(options.n)],
        stop=options.stop,
        priority=options.priority,
        cache_salt=options.cache_salt,
        rules=start.rules,
        opening=start.opening,
        instance=info.instance,
    )


def encode_prompt(prompt: Prompt, info: ModelInfo, text: ModelText, echo: bool = False) -> tuple[list[int], str]:
    """Ids, and the text to echo. Slow: renders and tokenises. Raises RequestError."""
    if isinstance(prompt, ChatPrompt):
        return start_chat(prompt, Options(), False, text, info.context).ids, ""
    if isinstance(prompt, TextPrompt):
        return text.encode(prompt.text, info.context, prompt.bos, prompt.special), prompt.text
    check_ids("prompt", prompt.ids, info.vocab)
    return prompt.ids, decode(prompt.ids, text) if echo else ""


def decode(ids: Sequence[int], text: ModelText) -> str:
    return text.tokenizer.decode(ids)


def _room(options: Options, prompt: int, context: int, param: str) -> int:
    """The request's max_tokens, given or by default; refused when the context cannot hold it."""
    if prompt == 0:
        raise RequestError("empty_prompt", "the prompt has no tokens; send at least one", param)
    left = context - prompt
    if left < 1:
        message = (
            f"the prompt has {prompt} tokens; the model's context of {context} leaves no room for a reply: shorten the prompt"
        )
        raise RequestError("context_length_exceeded", message, param)
    wanted = min(left, options.default_max_tokens) if options.max_tokens is None else options.max_tokens
    if wanted > left:
        message = (
            f"the prompt has {prompt} tokens and max_tokens is {wanted}, {prompt + wanted} in all; "
            f"the model's context is {context}. Shorten the prompt, or ask for at most {left}"
        )
        raise RequestError("context_length_exceeded", message, "max_tokens")
    if options.min_tokens > wanted:
        raise RequestError("invalid_value", f"`min_tokens` {options.min_tokens} is more than max_tokens, {wanted}", "min_tokens")
    return wanted


def _params(
    options: Options, defaults: GenerationDefaults, sampling: Sampling, max_tokens: int, start: ChatStart
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=options.min_tokens,
        temperature=first_given(options.temperature, defaults.temperature, sampling.temperature),
        top_k=first_given(options.top_k, defaults.top_k, 0),
        top_p=first_given(options.top_p, defaults.top_p, 1.0),
        min_p=first_given(options.min_p, defaults.min_p, 0.0),
        repetition_penalty=first_given(options.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=options.logit_bias,
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
        grammar=start.grammar,
        thinking_budget=start.thinking.budget,
        thinking_open=list(start.thinking.open),
        thinking_close=list(start.thinking.close),
        thinking_inside=start.thinking.inside,
    )


def first_given(asked: T | None, recommended: T | None, otherwise: T) -> T:
    """What the request says, else the model's makers, else the server."""
    if asked is not None:
        return asked
    return otherwise if recommended is None else recommended


def request_seed(given: int | None, prompt_ids: Sequence[int], unseeded: Literal["random", "prompt"], drawn: int) -> int:
    """A request's seed, 0 .. 2^63 - 1: the low 63 bits of the one given, else `drawn`, else made from the prompt's ids."""
    if given is not None:
        return given & SEED_MASK
    if unseeded == "random":
        return drawn
    return _hash63(struct.pack(f"<{len(prompt_ids)}i", *prompt_ids))


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice`: the request's own for the first, so that n = 1 and the first of n are the same reply.

    For the others: SHA-256 of the seed as 8 bytes and the choice as 4, both little-endian; its first 8 bytes, read little-endian,
    without the top bit.
    """
    return seed if choice == 0 else _hash63(struct.pack("<QI", seed, choice))


def _hash63(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") & SEED_MASK


def check_ids(param: str, ids: Sequence[int], vocab: int) -> None:
    if ids and max(ids) >= vocab:
        raise RequestError(
            "invalid_value", f"`{param}` holds token id {max(ids)}; the model's vocabulary has {vocab} entries", param
        )
