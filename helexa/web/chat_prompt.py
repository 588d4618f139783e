"""A chat prompt and a model's chat format to what the engine takes: prompt ids, rules for the reply's text, its grammar. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from helexa.errors import RequestError
from helexa.text.chat_format import ChatFormat
from helexa.text.grammar import Context, Forced, compose
from helexa.text.output_parser import ParseRules
from helexa.text.reasoning import Markers, Place, place_in
from helexa.text.tool_formats import ToolFormat
from helexa.web.model_text import ModelText, TextCodec
from helexa.web.request import EFFORTS, ChatPrompt, Options


@dataclass(frozen=True)
class Thinking:
    """A bound on reasoning, in ids: `budget` -1 is none; `inside`: the prompt left the model in it."""

    budget: int = -1
    open: tuple[int, ...] = ()
    close: tuple[int, ...] = ()
    inside: bool = False


@dataclass(frozen=True)
class ChatStart:
    """`opening` is text that the reply starts with: the marker of reasoning that the prompt began."""

    ids: list[int]
    rules: ParseRules
    grammar: str
    thinking: Thinking
    opening: str


def start_chat(prompt: ChatPrompt, options: Options, include_thinking: bool, text: ModelText, context: int) -> ChatStart:
    """Slow: renders and tokenises. Raises RequestError."""
    tools = prompt.tools.tools if prompt.tools is not None else []
    chat = text.chat_format(tools=bool(tools))
    kwargs, budget = _reasoning(prompt, options, chat)
    rendered = chat.render(prompt.messages, tools, kwargs)
    markers, format = chat.markers, chat.tool_format if tools else None
    place: Place = "over" if markers is None else place_in(rendered, markers)
    control = _control_ids(text.tokenizer, markers, chat.tool_format)
    rules = ParseRules(
        markers=None if include_thinking else markers,
        place=place,
        format=format,
        tools={tool.name: tool for tool in tools},
        single=prompt.tools is not None and not prompt.tools.parallel,
        visible={id: marker.encode() for marker, id in control.items()},
    )
    opening = f"{markers.open}\n" if include_thinking and markers is not None and place == "inside" else ""
    grammar = compose(options.format, _forced(prompt, chat), Context(markers, place, control))
    return ChatStart(
        text.encode(rendered, context, bos=False), rules, grammar, _thinking(budget, markers, place, text.tokenizer), opening
    )


def _forced(prompt: ChatPrompt, chat: ChatFormat) -> Forced | None:
    use = prompt.tools
    if use is None:
        return None
    tools = [tool for tool in use.tools if not use.forced or tool.name in use.forced]
    return Forced(chat.tool_format, tools, use.parallel, optional=not use.forced)


def _control_ids(tokenizer: TextCodec, markers: Markers | None, format: ToolFormat) -> dict[str, int]:
    """Those of the model's markers that are control tokens."""
    spellings: Iterable[str] = (*(markers or ()), *format.markers)
    ids = {spelling: tokenizer.control_id(spelling) for spelling in spellings}
    return {spelling: id for spelling, id in ids.items() if id is not None}


def _reasoning(prompt: ChatPrompt, options: Options, chat: ChatFormat) -> tuple[dict[str, Any], int]:
    """The template's variables, and the bound on reasoning (-1: none), as the request's effort and budget have it."""
    budget = -1 if options.thinking_budget is None else options.thinking_budget
    effort = prompt.reasoning_effort
    switch = next((name for name in ("enable_thinking", "thinking") if chat.reads(name)), None)
    if effort is None:
        return ({switch: False} if switch and budget == 0 else {}) | prompt.kwargs, budget
    if chat.reads("reasoning_effort"):
        return {"reasoning_effort": effort, **prompt.kwargs}, budget
    if effort == "none":
        if chat.markers is not None and switch is None:
            raise RequestError("unsupported_parameter", "`reasoning_effort` none: this model always reasons", "reasoning_effort")
        return ({switch: False} if switch else {}) | prompt.kwargs, budget
    if chat.markers is None:
        raise RequestError(
            "unsupported_parameter", f"`reasoning_effort` {effort}: this model does not reason; leave it out", "reasoning_effort"
        )
    return ({switch: True} if switch else {}) | prompt.kwargs, budget if budget >= 0 else EFFORTS.get(effort, -1)


def _thinking(budget: int, markers: Markers | None, place: Place, tokenizer: TextCodec) -> Thinking:
    if budget < 0 or markers is None or place == "over":
        return Thinking()
    return Thinking(budget, tuple(tokenizer.encode(markers.open)), tuple(tokenizer.encode(markers.close)), place == "inside")
