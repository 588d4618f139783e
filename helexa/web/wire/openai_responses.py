"""/v1/responses: a body to a WireRequest, events to a `response` and its stream of named, numbered events. Pure.

Where OpenAI's description and its packages disagree, what all of them take is sent: `usage` is null until the end, `user` is left
out, penalties and `store` are named, and an error event carries its fields both flat and as an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.web.events import Event, Finished, Started, TextDelta, Token, Usage
from helexa.web.request import ChatPrompt, ReplyMeta, Shape, WireRequest
from helexa.web.wire import checks, fields, tables
from helexa.web.wire.fields import checked, unknown
from helexa.web.wire.openai_common import logprob_document, options, tokens_with_logprobs
from helexa.web.wire.output_format import response_format
from helexa.web.wire.reply import Block, Blocks, Document, Vocabulary, made_id
from helexa.web.wire.responses_prompt import parse_input
from helexa.web.wire.tools import responses_tools

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
_ITEM_PREFIX = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


def parse(body: Mapping[str, Any]) -> WireRequest:
    refuse_chain(body)
    values = fields.parse(body, tables.RESPONSES)
    effort = _part(values, "reasoning", {"effort", "summary", "generate_summary"}).get("effort")
    if effort is not None:
        effort = checked("reasoning.effort", effort, checks.OneOf(("none", "minimal", "low", "medium", "high", "xhigh")))
    summaries = ("summary", "generate_summary")
    for name in summaries:
        if values.get("reasoning", {}).get(name) not in (None, "auto"):
            raise RequestError(
                "unsupported_parameter", f"`reasoning.{name}` is not supported: reasoning is sent as it is", f"reasoning.{name}"
            )
    text = _part(values, "text", {"format", "verbosity"})
    if text.get("verbosity") not in (None, "medium"):
        raise RequestError(
            "unsupported_parameter",
            "`text.verbosity` is not supported: the model does not take it; say it in a message",
            "text.verbosity",
        )
    padding = _part(values, "stream_options", {"include_obfuscation"}).get("include_obfuscation")
    if padding is not None and padding is not False:
        raise RequestError(
            "unsupported_parameter", "`stream_options.include_obfuscation` is not supported", "stream_options.include_obfuscation"
        )
    prompt = ChatPrompt(parse_input(values), responses_tools(values), values.get("chat_template_kwargs", {}), effort)
    format = response_format(text.get("format"), "text.format")
    return WireRequest(
        model=values["model"],
        prompts=[prompt],
        options=options(values, values.get("max_output_tokens"), _logprobs(values), format),
        shape=Shape(stream=values.get("stream", False), echoed=_echoed(values)),
    )


def refuse_chain(body: Mapping[str, Any]) -> None:
    if body.get("previous_response_id") is not None:
        raise RequestError(
            "chained_conversation_not_supported",
            "`previous_response_id` is not supported: replies are not stored; send the whole conversation in `input`",
            "previous_response_id",
        )


def _part(values: Mapping[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    given: dict[str, Any] = values.get(name, {})
    for key, value in given.items():
        if key not in known and value is not None:
            raise unknown(f"{name}.{key}", dict.fromkeys(known))
    return given


def _logprobs(values: Mapping[str, Any]) -> int:
    wanted = values.get("include", [])
    for name in wanted:
        if name not in _INCLUDED:
            raise RequestError(
                "unsupported_parameter", f"`include` {name[:64]} is not supported: no such tools are run", "include"
            )
    return int(values.get("top_logprobs", 0)) if LOGPROBS in wanted or values.get("top_logprobs") else -1


def _echoed(values: Mapping[str, Any]) -> Document:
    """What a response says of its request, with the defaults spelled out."""
    reasoning, text = values.get("reasoning", {}), values.get("text", {})
    return {
        "background": False,
        "frequency_penalty": values.get("frequency_penalty", 0.0),
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "max_tool_calls": values.get("max_tool_calls"),
        "metadata": values.get("metadata", {}),
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "presence_penalty": values.get("presence_penalty", 0.0),
        "previous_response_id": None,
        "prompt_cache_key": values.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None} if reasoning else None,
        "safety_identifier": values.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": values.get("temperature"),
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": values.get("tool_choice", "auto"),
        "tools": [_tool(tool) for tool in values.get("tools") or ()],
        "top_logprobs": values.get("top_logprobs", 0),
        "top_p": values.get("top_p"),
        "truncation": "disabled",
    }


def _tool(tool: Mapping[str, Any]) -> Document:
    empty = {"description": None, "parameters": None, "strict": None}
    return {**empty, **{key: value for key, value in tool.items() if key in ("type", "name", *empty)}}


class ResponseReply:
    """A Reply (reply.py). It has one choice; each block is an item of `output`."""

    named = True
    end = b""

    def __init__(self, meta: ReplyMeta, vocabulary: Vocabulary) -> None:
        self._meta = meta
        self._vocabulary = vocabulary
        self._blocks = Blocks()
        self._finished: Finished | None = None
        self._number = 0

    # streamed

    def opening(self) -> list[Document]:
        response = self._response("in_progress", None)
        return [self._event("response.created", response=response), self._event("response.in_progress", response=response)]

    def chunks(self, event: Event) -> list[Document]:
        if isinstance(event, Started):
            return []
        if isinstance(event, Finished):
            self._finished = event
            opened = [] if self._blocks.all else self._opened(self._blocks.take(TextDelta(0, "", []))[0])
            return opened + self._closed(self._blocks.all[-1])
        if isinstance(event, TextDelta) and not event.text:
            return []
        last = self._blocks.all[-1] if self._blocks.all else None
        block, new = self._blocks.take(event)
        closed = self._closed(last) if new and last is not None else []
        opened = self._opened(block) if new else []
        return [*closed, *opened, self._delta(block, block.parts[-1], event.tokens)]

    def last_chunks(self, usage: Usage) -> list[Document]:
        response = self.document(usage)
        return [self._event(f"response.{response['status']}", response=response)]

    def failure(self, error: RequestError) -> Document:
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("error", **fields, error={**fields, "type": error.type})

    def _event(self, type: str, **fields: Any) -> Document:
        self._number += 1
        return {"type": type, "sequence_number": self._number - 1, **fields}

    def _opened(self, block: Block) -> list[Document]:
        empty: Document = {"arguments": ""} if block.kind == "call" else {"content": []}
        item = {**self._item(block), "status": "in_progress", **empty}
        added = self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind == "call":
            return [added]
        return [added, self._event("response.content_part.added", **self._place(block), part=self._part(block, empty=True))]

    def _delta(self, block: Block, text: str, tokens: list[Token]) -> Document:
        if block.kind == "text":
            logprobs = self._logprobs(tokens, with_bytes=False)
            return self._event("response.output_text.delta", **self._place(block), delta=text, logprobs=logprobs)
        if block.kind == "reasoning":
            return self._event("response.reasoning_text.delta", **self._place(block), delta=text)
        return self._event("response.function_call_arguments.delta", **self._item_place(block), delta=text)

    def _closed(self, block: Block) -> list[Document]:
        item = self._item(block)
        done = self._event
        if block.kind == "call":
            events = [
                done("response.function_call_arguments.done", **self._item_place(block), name=block.name, arguments=block.text)
            ]
        elif block.kind == "reasoning":
            events = [done("response.reasoning_text.done", **self._place(block), text=block.text)]
        else:
            logprobs = self._logprobs(block.tokens, with_bytes=False)
            events = [done("response.output_text.done", **self._place(block), text=block.text, logprobs=logprobs)]
        if block.kind != "call":
            events.append(done("response.content_part.done", **self._place(block), part=self._part(block)))
        return [*events, done("response.output_item.done", output_index=block.index, item=item)]

    # whole

    def add(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._finished = event
        elif not isinstance(event, Started) and not (isinstance(event, TextDelta) and not event.text):
            self._blocks.take(event)

    def document(self, usage: Usage) -> Document:
        if not self._blocks.all:
            self._blocks.take(TextDelta(0, "", []))
        assert self._finished is not None
        return self._response("incomplete" if self._finished.reason == "length" else "completed", usage)

    # parts

    def _response(self, status: str, usage: Usage | None) -> Document:
        meta = self._meta
        response: Document = {
            "id": meta.id,
            "object": "response",
            "created_at": meta.created,
            "completed_at": usage.completed_at if usage is not None and status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": meta.model,
            "output": [self._item(block) for block in self._blocks.all] if usage is not None else [],
            "usage": None if usage is None else self._usage(usage),
            **meta.shape.echoed,
        }
        params = meta.prompts[0].params
        response["temperature"] = params.temperature
        response["top_p"] = params.top_p if response["top_p"] is None else response["top_p"]
        return response

    def _usage(self, usage: Usage) -> Document:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._blocks.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _id(self, block: Block) -> str:
        return made_id(_ITEM_PREFIX[block.kind], self._meta.id, block.index)

    def _item_place(self, block: Block) -> Document:
        return {"item_id": self._id(block), "output_index": block.index}

    def _place(self, block: Block) -> Document:
        return {**self._item_place(block), "content_index": 0}

    def _item(self, block: Block) -> Document:
        """The last item of a reply that was cut short is incomplete."""
        last = block.index == len(self._blocks.all) - 1
        cut = last and self._finished is not None and self._finished.reason == "length"
        head: Document = {"id": self._id(block), "status": "incomplete" if cut else "completed"}
        if block.kind == "text":
            return {**head, "type": "message", "role": "assistant", "content": [self._part(block)]}
        if block.kind == "reasoning":
            return {**head, "type": "reasoning", "summary": [], "content": [self._part(block)]}
        call_id = made_id("call_", self._meta.id, block.index)
        return {**head, "type": "function_call", "call_id": call_id, "name": block.name, "arguments": block.text}

    def _part(self, block: Block, empty: bool = False) -> Document:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": "" if empty else block.text}
        logprobs = [] if empty else self._logprobs(block.tokens)
        return {"type": "output_text", "text": "" if empty else block.text, "annotations": [], "logprobs": logprobs}

    def _logprobs(self, tokens: list[Token], with_bytes: bool = True) -> list[Document]:
        best = self._meta.logprobs
        if best < 0:
            return []
        return [logprob_document(self._vocabulary, token, best, with_bytes) for token in tokens_with_logprobs(tokens)]
