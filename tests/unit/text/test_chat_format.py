"""What is learnt from chat templates, by small ones that stand for the families."""

from __future__ import annotations

from typing import Any

import pytest

from helexa.errors import RequestError
from helexa.text.chat_format import ChatFormat
from helexa.text.chat_template import ChatTemplate
from helexa.text.tool_formats import Tool

PLAIN = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARTS = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
TOOLED = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
TEXT_ARGUMENTS = TOOLED.replace("c.function.arguments | tojson", "c.function.arguments + ''")
WANTS_A_LIST = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + PLAIN
DROPS_CALLS = "{{ tools }}" + PLAIN
THINKS = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
MISTRAL = (
    TOOLED.replace("<tool_call>{{", "[TOOL_CALLS]{{ c.id }} {{").replace("</tool_call>", "") + "{{ messages[-1].tool_call_id }}"
)

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOL = Tool("weather", "Says it.", {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
TURNS = [
    *HI,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
]


def chat(source: str) -> ChatFormat:
    return ChatFormat(ChatTemplate(source, "<s>", "</s>"))


def test_content_is_a_string_or_parts() -> None:
    """As the template reads it."""
    assert "hi" in chat(PLAIN).render(HI, [], {}) and "'type'" not in chat(PLAIN).render(HI, [], {})
    assert chat(PARTS).render(HI, [], {}) == "<user>hi"


def test_a_template_with_a_place_for_tools() -> None:
    """It gets them, and calls with arguments in the form that comes out as JSON."""
    for source in (TOOLED, TEXT_ARGUMENTS):
        format = chat(source)
        text = format.render(TURNS, [TOOL], {})
        assert format.takes_tools and '"name": "weather"' in text and 'weather {"city": "Paris"}' in text and "<tool>sun" in text


def test_a_template_without_one() -> None:
    """Tools are told of in the system message, calls and results in text; no role `tool` is left."""
    format = chat(PLAIN)
    text = format.render([{"role": "system", "content": "Be brief."}, *TURNS], [TOOL], {})
    assert not format.takes_tools and text.startswith("<system>Be brief.\n\n") and '"name": "weather"' in text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text
    assert "<user><tool_response>\nsun\n</tool_response>" in text and "<tool>" not in text
    assert chat(PLAIN).render(HI, [TOOL], {}).startswith("<system>You may call")


def test_a_template_that_drops_calls_gets_them_as_text() -> None:
    text = chat(DROPS_CALLS).render(TURNS, [TOOL], {})
    assert '{"name": "weather", "arguments": {"city": "Paris"}}' in text and "sun" in text


def test_a_template_that_wants_a_list_of_tools() -> None:
    """Where there are none it gets an empty one."""
    assert chat(WANTS_A_LIST).render(HI, [], {}).startswith("<user>hi")


def test_ids_are_short_where_they_must_be() -> None:
    """Mistral's templates take nine letters and digits; a call and its result keep the same."""
    text = chat(MISTRAL).render(TURNS, [TOOL], {})
    id = text.rpartition("sun")[2]
    assert len(id) == 9 and id.isalnum() and f"[TOOL_CALLS]{id} weather" in text


def test_variables_of_the_template() -> None:
    """Those it reads act; others are refused by name, unless they ask for nothing; only plain values pass."""
    format = chat(THINKS)
    assert format.render(HI, [], {"enable_thinking": False}).endswith("<think></think>")
    assert format.render(HI, [], {"enable_thinking": True}).endswith("<think>")
    assert chat(PLAIN).render(HI, [], {"enable_thinking": False}) == chat(PLAIN).render(HI, [], {})
    for kwargs in ({"enable_thinking": True}, {"messages": "x"}, {"colour": 1}):
        with pytest.raises(RequestError) as caught:
            chat(PLAIN).render(HI, [], kwargs)
        assert caught.value.param == f"chat_template_kwargs.{next(iter(kwargs))}"
    for value in ([1], {"a": 1}, "x" * 2000):
        with pytest.raises(RequestError, match="short string"):
            format.render(HI, [], {"enable_thinking": value})
