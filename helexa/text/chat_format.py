"""What a model's chat template tells of how the model talks: where tools and reasoning go, and which forms messages take.

All of it is learnt from the template, by what it reads and by trying it out; a model's name says nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from helexa.errors import RequestError
from helexa.text import tool_formats
from helexa.text.reasoning import find_markers
from helexa.text.tool_formats import Tool
from helexa.text.tool_prompt import spelled_out

_PROBE = "zq7probe"
_NEUTRAL = {"enable_thinking": False, "thinking": False}  # to a template that knows no reasoning they ask for nothing
_MOST_KWARG_TEXT = 1024


class Template(Protocol):
    """What is used of helexa.text.chat_template.ChatTemplate."""

    @property
    def source(self) -> str: ...

    @property
    def variables(self) -> frozenset[str]: ...

    def render(self, messages: list[dict[str, Any]], /, add_generation_prompt: bool = True, **extra: Any) -> str: ...


class ChatFormat:
    """`takes_tools`: the template has a place for tools; else they are spelled out. `markers` None: the model does not reason."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.markers = find_markers(template.source)
        self.tool_format = tool_formats.detect(template.source)
        self.takes_tools = "tools" in template.variables
        self._no_tools, self._arrays = self._forms()
        as_object, as_text = self._shows_arguments({_PROBE: 1}), self._shows_arguments(json.dumps({_PROBE: 1}))
        self._takes_calls = self.takes_tools and (as_object or as_text)
        self._arguments_as_text = as_text and not as_object
        self._short_ids = "[TOOL_CALLS]" in template.source  # those templates want ids of nine letters and digits

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], kwargs: Mapping[str, Any]) -> str:
        """The prompt. `messages` have string content, and tool calls as OpenAI has them but with their arguments as objects."""
        self._check(kwargs)
        given = {name: value for name, value in kwargs.items() if name in self._template.variables}
        if not self.takes_tools:
            return self._template.render(self._shaped(spelled_out(messages, tools, self.tool_format)), **given)
        documents = [tool.document() for tool in tools]
        plain = messages if self._takes_calls else spelled_out(messages, [], self.tool_format)
        return self._template.render(self._shaped(plain), **given, tools=documents or self._no_tools)

    def _check(self, kwargs: Mapping[str, Any]) -> None:
        """A variable that the template does not read would be accepted and ignored."""
        readable = self._template.variables - {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
        for name, value in kwargs.items():
            param = f"chat_template_kwargs.{name[:64]}"
            if name not in readable and not (name in _NEUTRAL and value == _NEUTRAL[name]):
                known = ", ".join(sorted(readable)) or "none"
                raise RequestError(
                    "unsupported_parameter", f"`{param}` is no variable of the model's chat template; it reads: {known}", param
                )
            if not isinstance(value, (bool, int, float, str)) or (isinstance(value, str) and len(value) > _MOST_KWARG_TEXT):
                raise RequestError("invalid_value", f"`{param}` must be true, false, a number or a short string", param)

    def _shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages in the forms that this template takes."""
        shaped = []
        for message in messages:
            copy = dict(message)
            if self._arrays:
                copy["content"] = [{"type": "text", "text": message["content"]}]
            if message.get("tool_calls"):
                copy["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
            if self._short_ids and "tool_call_id" in message:
                copy["tool_call_id"] = _short(message["tool_call_id"])
            shaped.append(copy)
        return shaped

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self._arguments_as_text:
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "id": _short(call["id"]) if self._short_ids else call["id"], "function": function}

    @property
    def source(self) -> str:
        return self._template.source

    def reads(self, name: str) -> bool:
        return name in self._template.variables

    def _forms(self) -> tuple[list[Any] | None, bool]:
        """(what `tools` is when there are none, whether content is an array of parts): the first forms that come out."""
        tools: tuple[list[Any] | None, ...] = (None, [])
        for no_tools, arrays in itertools.product(tools, (False, True)):
            content = [{"type": "text", "text": _PROBE}] if arrays else _PROBE
            if self._shows(_PROBE, [{"role": "user", "content": content}], no_tools):
                return no_tools, arrays
        return None, False

    def _shows_arguments(self, arguments: Any) -> bool:
        """Whether a call's arguments, given as an object or as text, come out as JSON."""
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
        asked, called = {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}
        return self._shows(f'"{_PROBE}": 1', [asked, called], self._no_tools)

    def _shows(self, text: str, messages: list[dict[str, Any]], tools: list[Any] | None) -> bool:
        try:
            return text in self._template.render(messages, add_generation_prompt=False, tools=tools)
        except RequestError:
            return False


def _short(id: str) -> str:
    """Nine letters and digits that stand for an id; one that has that form is kept."""
    return id if len(id) == 9 and id.isalnum() and id.isascii() else hashlib.sha256(id.encode()).hexdigest()[:9]
