"""Chat prompts to what the engine takes: where reasoning starts, how it is bounded, what a reply is held to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from byte_text import ByteTokenizer

from helexa.errors import RequestError
from helexa.text.chat_template import ChatTemplate
from helexa.text.grammar import OutputFormat
from helexa.text.reasoning import KNOWN
from helexa.text.tool_formats import Tool
from helexa.web.chat_prompt import ChatStart, Thinking, start_chat
from helexa.web.model_text import ModelText
from helexa.web.request import ChatPrompt, Options, ToolUse

THINK = KNOWN[0]
MESSAGES = "{% for m in messages %}{{ m.content }}{% endfor %}|"
SWITCHED = MESSAGES + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}{% endif %}"
OPENED = MESSAGES + "<think>\n"
GRADED = MESSAGES + "{{ reasoning_effort }}</think>"
PLAIN = MESSAGES
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOLS = [Tool("f"), Tool("g")]


class Controlled(ByteTokenizer):
    """<think> is a control token."""

    def control_id(self, text: str) -> int | None:
        return {"<think>": 258, "[TOOL_CALLS]": 259}.get(text)


def start(
    template: str, tokenizer: Any = None, include_thinking: bool = False, options: Options | None = None, **prompt: Any
) -> ChatStart:
    text = ModelText(tokenizer or ByteTokenizer(), ChatTemplate(template, "", ""))
    return start_chat(ChatPrompt(HI, **prompt), options or Options(), include_thinking, text, 4096)


@pytest.mark.parametrize(
    ("template", "kwargs", "place"),
    [(SWITCHED, {}, "before"), (SWITCHED, {"enable_thinking": False}, "over"), (OPENED, {}, "inside"), (PLAIN, {}, "over")],
)
def test_where_the_reply_starts(template: str, kwargs: dict[str, Any], place: str) -> None:
    """By the end of the prompt that the template wrote."""
    rules = start(template, kwargs=kwargs).rules
    assert rules.place == place and rules.markers == (None if template == PLAIN else THINK)


def test_reasoning_that_stays_in_the_text() -> None:
    """Nothing is told apart, and the marker that the prompt ended with comes first."""
    begun = start(OPENED, include_thinking=True)
    assert begun.rules.markers is None and begun.opening == "<think>\n"
    assert start(SWITCHED, include_thinking=True).opening == "" == start(OPENED).opening


@pytest.mark.parametrize(
    ("template", "effort", "tail", "budget"),
    [
        (SWITCHED, None, "hi|", -1),
        (SWITCHED, "none", "hi|<think>\n\n</think>\n\n", -1),
        (SWITCHED, "low", "hi|", 1024),
        (SWITCHED, "high", "hi|", -1),
        (OPENED, "minimal", "hi|<think>", 256),
        (GRADED, "high", "hi|high</think>", -1),
        (PLAIN, "none", "hi|", -1),
    ],
)
def test_efforts(template: str, effort: str | None, tail: str, budget: int) -> None:
    """As the template has it; else by its switch, and a bound."""
    begun = start(template, reasoning_effort=effort)
    assert bytes(begun.ids).decode() == tail and begun.thinking.budget == budget


def test_efforts_that_cannot_be() -> None:
    for template, effort in ((OPENED, "none"), (PLAIN, "high")):
        with pytest.raises(RequestError) as caught:
            start(template, reasoning_effort=effort)
        assert caught.value.param == "reasoning_effort"


def test_budgets() -> None:
    """In ids; none at all turns reasoning off where the template can; a model that does not reason needs none."""
    begun = start(OPENED, options=Options(thinking_budget=7)).thinking
    assert begun == Thinking(7, tuple(b"<think>"), tuple(b"</think>"), inside=True)
    off = start(SWITCHED, options=Options(thinking_budget=0))
    assert off.rules.place == "over" and off.thinking == Thinking()
    assert start(PLAIN, options=Options(thinking_budget=7)).thinking == Thinking()
    assert start(SWITCHED, options=Options(thinking_budget=7), reasoning_effort="low").thinking.budget == 7


def test_markers_that_are_control_tokens_are_seen() -> None:
    """And stand as tokens in a grammar."""
    begun = start(SWITCHED, Controlled(), options=Options(format=OutputFormat("choice", ["a"], "f")))
    assert begun.rules.visible == {258: b"<think>"}
    assert "<[258]> reasoning" in json.loads(begun.grammar)["grammars"][0]["lark_grammar"]


@pytest.mark.parametrize(
    ("use", "offered", "single", "named"),
    [
        (None, [], False, []),
        (ToolUse(TOOLS), ["f", "g"], False, []),
        (ToolUse(TOOLS, ["f", "g"]), ["f", "g"], False, ["f", "g"]),
        (ToolUse(TOOLS, ["g"], parallel=False), ["f", "g"], True, ["g"]),
    ],
)
def test_tools(use: ToolUse | None, offered: list[str], single: bool, named: list[str]) -> None:
    """What is offered is looked for; what is forced is the grammar's."""
    begun = start(PLAIN, tools=use)
    assert list(begun.rules.tools) == offered and begun.rules.single == single
    assert (begun.rules.format is not None) == bool(offered) and bool(begun.grammar) == bool(named)
    for name in "fg" if named else "":
        assert (f'\\"{name}\\"' in json.loads(begun.grammar)["grammars"][0]["lark_grammar"]) == (name in named)


def test_a_model_without_a_template_has_no_chat() -> None:
    with pytest.raises(RequestError) as caught:
        start_chat(ChatPrompt(HI), Options(), False, ModelText(ByteTokenizer(), None), 100)
    assert caught.value.code == "template_error"
