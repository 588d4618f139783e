"""Chat templates of real models, as they come with an outside implementation's sources."""

from __future__ import annotations

from typing import Any

import pytest
from outside_sources import outside_data

from helexa.errors import RequestError
from helexa.text.chat_format import ChatFormat
from helexa.text.chat_template import ChatTemplate
from helexa.text.tool_formats import Tool

pytestmark = pytest.mark.model

CITY = {"type": "string", "description": "Where."}
WEATHER = Tool("weather_of", "Tells the weather.", {"type": "object", "properties": {"city": CITY}, "required": ["city"]})
# What a template itself asks for, and a conversation here does not have.
OWN_DEMANDS = {
    "fireworks-ai-llama-3-firefunction-v2.jinja": "'functions' is undefined",
    "google-gemma-2-2b-it.jinja": "System role not supported",  # tools are spelled out in a system message
}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "zebra"}]
TURNS: list[dict[str, Any]] = [*ASKED, {"role": "assistant", "content": "lion"}, {"role": "user", "content": "tiger"}]


def test_real_templates_render() -> None:
    """Every one compiles, and renders a question, a talk, and a question with a tool, with every word of them in the prompt; what
    a template refuses by itself is told in its words."""
    paths = sorted(outside_data().glob("*.jinja"))
    assert len(paths) >= 60
    failed = []
    for path in paths:
        chat = ChatFormat(ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>", path.name))
        for messages, tools in ((ASKED, []), (TURNS, []), (ASKED, [WEATHER])):
            try:
                prompt = chat.render(messages, tools, {})
            except RequestError as error:
                if not error.message.endswith(OWN_DEMANDS.get(path.name, "never")):
                    failed.append(f"{path.name}: {error.message}")
                continue
            words = [message["content"] for message in messages] + [tool.name for tool in tools]
            failed += [f"{path.name}: {word} is not in the prompt" for word in words if word not in prompt]
    assert not failed, "\n".join(failed)
