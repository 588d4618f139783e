"""/v1/completions: a body to a WireRequest, events to `text_completion` documents, which streamed chunks are too. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, Started, TextDelta, Token, Usage
from helexa.web.request import GenerationRequest, Options, Prompt, ReplyMeta, TextPrompt, TokenPrompt, WireRequest
from helexa.web.wire import fields, tables
from helexa.web.wire.checks import is_token_id
from helexa.web.wire.openai_common import (
    candidate_text,
    error_document,
    options,
    sampled_text,
    shape,
    token_sha,
    tokens_with_logprobs,
    usage_document,
)
from helexa.web.wire.reply import DONE, Document, Vocabulary
from ipc.messages import TokenLogprobs

MAX_PROMPTS = 128


def parse(body: Mapping[str, Any]) -> WireRequest:
    values = fields.parse(body, tables.COMPLETIONS)
    request = WireRequest(
        model=values["model"],
        prompts=parse_prompts(values["prompt"], "prompt", MAX_PROMPTS),
        options=_options(values),
        shape=shape(values),
    )
    if len(request.prompts) * request.options.n > MAX_PROMPTS:
        raise RequestError(
            "invalid_value", f"{len(request.prompts)} prompts of {request.options.n} choices are over {MAX_PROMPTS} choices", "n"
        )
    return request


def _options(values: Mapping[str, Any]) -> Options:
    """With `echo` the log probabilities are of the prompt too."""
    wanted = options(values, values.get("max_tokens"), values.get("logprobs", -1))
    return dataclasses.replace(wanted, prompt_logprobs=wanted.logprobs) if values.get("echo") else wanted


def parse_prompts(given: Any, param: str, most: int) -> list[Prompt]:
    """Strings, token ids, or arrays of either, as field `param`; at most `most` prompts."""
    if isinstance(given, str):
        return [TextPrompt(given)]
    if given and all(isinstance(item, str) for item in given):
        prompts: list[Prompt] = [TextPrompt(item) for item in given]
    elif given and all(is_token_id(item) for item in given):
        prompts = [TokenPrompt(given)]
    elif given and all(isinstance(item, list) and all(is_token_id(id) for id in item) for item in given):
        prompts = [TokenPrompt(item) for item in given]
    elif not given:
        raise RequestError("empty_prompt", f"`{param}` is an empty array", param)
    else:
        raise RequestError(
            "invalid_value", f"`{param}` must be strings, or token ids, or arrays of token ids, not a mixture", param
        )
    if len(prompts) > most:
        raise RequestError("invalid_value", f"`{param}` has {len(prompts)} entries; at most {most} are served at once", param)
    return prompts


@dataclass
class _Choice:
    request: GenerationRequest
    started: bool = False
    offset: int = 0  # characters of text so far, for text_offset
    text: list[str] = field(default_factory=list)
    tokens: list[tuple[int, Token]] = field(default_factory=list)  # each with its text_offset
    finished: Finished | None = None


class CompletionsReply:
    """A Reply (reply.py). Choice index = prompt index * n + choice."""

    named = False
    end = DONE

    def __init__(self, meta: ReplyMeta, vocabulary: Vocabulary) -> None:
        self._meta = meta
        self._vocabulary = vocabulary
        self._choices = [_Choice(request) for request in meta.prompts for _ in request.seeds]

    # streamed

    def opening(self) -> list[Document]:
        return []

    def failure(self, error: RequestError) -> Document:
        return error_document(error)

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        choice = self._choices[event.choice]
        if isinstance(event, Started):
            return self._opening(event, choice)
        if isinstance(event, TextDelta):
            tokens = self._placed(choice, event)
            wants_tokens = self._meta.shape.token_ids or self._meta.logprobs >= 0
            if not event.text and not (tokens and wants_tokens):
                return []
            return [self._chunk(event.choice, event.text, tokens, None)]
        if not isinstance(event, Finished):
            return []  # a completion has no reasoning and no calls
        tail = [(choice.offset, Token(id)) for id in event.tail]
        return [self._chunk(event.choice, "", self._with_end(choice, tail, event), event)]

    def last_chunks(self, usage: Usage) -> list[dict[str, Any]]:
        return [{**self._head(), "choices": [], "usage": usage_document(usage)}] if self._meta.shape.include_usage else []

    def _opening(self, event: Started, choice: _Choice) -> list[dict[str, Any]]:
        """The echoed prompt and its ids, where asked for."""
        shape = self._meta.shape
        choice.offset = len(choice.request.prompt_text) if shape.echo else 0
        if not shape.echo and not shape.token_ids:
            return []
        document = self._chunk(event.choice, choice.request.prompt_text if shape.echo else "", [], None)
        entry = document["choices"][0]
        entry["logprobs"] = self._logprobs(self._prompt_tokens(event, choice), first=shape.echo)
        if shape.token_ids:
            entry["prompt_token_ids"] = choice.request.prompt_ids
        return [document]

    def _prompt_tokens(self, event: Started, choice: _Choice) -> list[tuple[int, Token]]:
        """The echoed prompt's tokens, each with the offset of its text; the first has no log probability."""
        if self._meta.logprobs < 0 or not self._meta.shape.echo:
            return []
        placed, offset = [], 0
        for id, logprobs in zip(choice.request.prompt_ids, [None, *event.prompt_logprobs], strict=True):
            placed.append((offset, Token(id, logprobs)))
            offset += len(sampled_text(self._vocabulary, id))
        return placed

    def _with_end(self, choice: _Choice, tokens: list[tuple[int, Token]], event: Finished) -> list[tuple[int, Token]]:
        """Where a prompt is scored every token counts, also one that ended the output and has no text."""
        if event.end_token is None or not self._meta.shape.echo or self._meta.logprobs < 0:
            return tokens
        return [*tokens[:-1], (choice.offset, event.end_token)] if tokens else [(choice.offset, event.end_token)]

    def _chunk(self, index: int, text: str, tokens: list[tuple[int, Token]], finished: Finished | None) -> dict[str, Any]:
        shape = self._meta.shape
        entry: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(tokens),
            "finish_reason": finished.reason if finished else None,
        }
        if shape.token_ids:
            entry["token_ids"] = [token.id for _, token in tokens]
        if shape.token_sha and finished:
            entry["token_sha"] = token_sha(finished.ids)
        return {**self._head(), "choices": [entry]}

    # whole

    def add(self, event: Event) -> None:
        choice = self._choices[event.choice]
        if isinstance(event, Started) and self._meta.shape.echo:
            choice.text.append(choice.request.prompt_text)
            choice.offset = len(choice.request.prompt_text)
            choice.tokens += self._prompt_tokens(event, choice)
        elif isinstance(event, TextDelta):
            choice.tokens += self._placed(choice, event)
            choice.text.append(event.text)
        elif isinstance(event, Finished):
            choice.finished = event
            choice.tokens += self._with_end(choice, [], event)

    def document(self, usage: Usage) -> dict[str, Any]:
        choices = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
        return {**self._head(), "choices": choices, "usage": usage_document(usage)}

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        assert choice.finished is not None
        entry: dict[str, Any] = {
            "index": index,
            "text": "".join(choice.text),
            "logprobs": self._logprobs(choice.tokens, first=self._meta.shape.echo),
            "finish_reason": choice.finished.reason,
        }
        if self._meta.shape.token_ids:
            entry["prompt_token_ids"] = choice.request.prompt_ids
            entry["token_ids"] = choice.finished.ids
        if self._meta.shape.token_sha:
            entry["token_sha"] = token_sha(choice.finished.ids)
        return entry

    def _head(self) -> dict[str, Any]:
        meta = self._meta
        return {
            "id": meta.id,
            "object": "text_completion",
            "created": meta.created,
            "model": meta.model,
            "system_fingerprint": meta.fingerprint,
        }

    def _placed(self, choice: _Choice, event: TextDelta) -> list[tuple[int, Token]]:
        """The event's tokens with their text offsets; the choice's own moves on by the event's text."""
        placed, offset = [], choice.offset
        for token in event.tokens:
            placed.append((offset, token))
            offset += token.chars
        choice.offset += len(event.text)
        return placed

    def _logprobs(self, tokens: list[tuple[int, Token]], first: bool = False) -> dict[str, Any] | None:
        """`first`: the tokens start with an echoed prompt's first, which has no log probability, and is told by nulls."""
        if self._meta.logprobs < 0 or (not (first and tokens) and not tokens_with_logprobs([token for _, token in tokens])):
            return None
        names: list[str] = []
        own: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for place, (offset, token) in enumerate(tokens):
            if token.logprobs is None and not (first and place == 0):
                continue
            names.append(sampled_text(self._vocabulary, token.id))
            own.append(None if token.logprobs is None else token.logprobs.logprob)
            top.append(None if token.logprobs is None else self._ranked(token.id, token.logprobs))
            offsets.append(offset)
        return {"tokens": names, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}

    def _ranked(self, id: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """The token's own and the likeliest, by their texts; of two with one text the likelier counts."""
        best = list(zip(logprobs.ids, logprobs.logprobs, strict=True))[: self._meta.logprobs]
        ranked = {candidate_text(self._vocabulary, id): logprobs.logprob}
        for other, logprob in best:
            ranked.setdefault(candidate_text(self._vocabulary, other), logprob)
        return dict(sorted(ranked.items(), key=lambda item: -item[1]))
