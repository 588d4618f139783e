"""How models write tool calls: one file a format. Which one a model writes is read off its chat template, never off its name.

A format finds the end of a section that holds calls, takes the calls out of it, and says what a forced call looks like. Pure.
"""

from __future__ import annotations

from helexa.text.tool_formats.calls import Call, Tool, ToolFormat
from helexa.text.tool_formats.llama import LlamaJson
from helexa.text.tool_formats.mistral import MistralArgs, MistralList
from helexa.text.tool_formats.tagged import TaggedJson, TaggedXml

__all__ = ["Call", "Tool", "ToolFormat", "detect"]


def detect(template: str) -> ToolFormat:
    """The format that a template teaches its model; tagged JSON, which is what most are trained on, where it teaches none."""
    if "[TOOL_CALLS]" in template:
        return MistralArgs() if "[ARGS]" in template else MistralList()
    if "<function=" in template and "<tool_call>" in template:
        return TaggedXml()
    if "<tool_call>" in template:
        return TaggedJson()
    if "<|python_tag|>" in template or '"parameters": dictionary of argument name' in template:
        return LlamaJson()
    return TaggedJson()
