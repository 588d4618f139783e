"""Text to text, reasoning and calls."""

from __future__ import annotations

import json

import pytest

from helexa.text.output_parser import OutputParser, ParseRules, Piece
from helexa.text.reasoning import KNOWN, find_markers, place_in
from helexa.text.tool_formats import Tool
from helexa.text.tool_formats.llama import LlamaJson
from helexa.text.tool_formats.mistral import MistralList
from helexa.text.tool_formats.tagged import TaggedJson

THINK = KNOWN[0]
TOOLS = {"f": Tool("f"), "g": Tool("g")}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
WITH_TOOLS = ParseRules(format=TaggedJson(), tools=TOOLS)


def parse(text: str, rules: ParseRules, step: int = 1) -> list[tuple[str, str]]:
    """(kind, text) of the pieces, neighbours of one kind as one, from pushes of `step` characters."""
    parser = OutputParser(rules)
    pieces: list[Piece] = []
    for at in range(0, len(text), step):
        pieces += parser.push(text[at : at + step])
    pieces += parser.flush()
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if found and piece.kind == found[-1][0] != "call":
            found[-1] = (piece.kind, found[-1][1] + piece.text)
        else:
            found.append((piece.kind, piece.text if piece.kind != "call" else f"{piece.name} {json.loads(piece.text)}"))
    return found


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("<think>\nhm\n</think>\n\nhello", "before", [("reasoning", "hm"), ("text", "hello")]),
        ("hm </think> hello", "inside", [("reasoning", "hm"), ("text", "hello")]),
        ("a <think> b </think>", "before", [("text", "a <think> b </think>")]),
        ("<think> not closed", "before", [("reasoning", "not closed")]),
        ("<think>\n\n</think>\n\nhello", "before", [("text", "hello")]),
        ("</think> hello", "over", [("text", "</think> hello")]),
        (" <thin", "before", [("text", " <thin")]),
        ("<think>a </thin k</think>b", "before", [("reasoning", "a </thin k"), ("text", "b")]),
    ],
)
def test_reasoning(step: int, text: str, place: str, expected: list[tuple[str, str]]) -> None:
    """It is told from text by the markers at the start alone, and loses only them and white space beside them."""
    assert parse(text, ParseRules(markers=THINK, place=place), step) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, [("call", "f {'a': 1}")]),
        (f"Wait.\n\n{CALL}\n{CALL}", [("text", "Wait."), ("call", "f {'a': 1}"), ("call", "f {'a': 1}")]),
        (f"a{CALL}b", [("text", "a"), ("call", "f {'a': 1}"), ("text", "b")]),
        ("<tool_call>nonsense</tool_call> b", [("text", "<tool_call>nonsense</tool_call> b")]),
        ('a \n<tool_call>{"name": "h"}</tool_call>', [("text", 'a \n<tool_call>{"name": "h"}</tool_call>')]),
        ("a < b <tool", [("text", "a < b <tool")]),
        ('<tool_call>{"name": "f", "arguments": {"a', [("text", '<tool_call>{"name": "f", "arguments": {"a')]),
        ("trailing  ", [("text", "trailing  ")]),
    ],
)
def test_calls(step: int, text: str, expected: list[tuple[str, str]]) -> None:
    """Calls of tools that are offered; everything else is text, to the last character."""
    assert parse(text, WITH_TOOLS, step) == expected


def test_reasoning_hides_calls() -> None:
    """A call that the model only thinks of is none."""
    rules = ParseRules(markers=THINK, format=TaggedJson(), tools=TOOLS)
    assert parse(f"<think>{CALL}</think>{CALL}", rules) == [("reasoning", CALL), ("call", "f {'a': 1}")]


def test_sections_that_last_to_the_end() -> None:
    """Mistral's list and Llama's bare JSON are decided by the end; JSON that is no call is text."""
    mistral = ParseRules(format=MistralList(), tools=TOOLS)
    assert parse('ok [TOOL_CALLS][{"name": "f", "arguments": {}}]', mistral) == [("text", "ok"), ("call", "f {}")]
    llama = ParseRules(format=LlamaJson(), tools=TOOLS)
    assert parse(' {"name": "g", "parameters": {"x": 2}}', llama) == [("call", "g {'x': 2}")]
    assert parse('{"answer": 42}', llama) == [("text", '{"answer": 42}')]
    assert parse('see {"name": "g", "parameters": {}}', llama) == [("text", 'see {"name": "g", "parameters": {}}')]


def test_a_single_call_ends_the_reply() -> None:
    """What comes after it is not taken."""
    rules = ParseRules(format=TaggedJson(), tools=TOOLS, single=True)
    assert parse(f"a {CALL}\n{CALL} tail", rules) == [("text", "a"), ("call", "f {'a': 1}")]


def test_text_without_markers_is_not_held_back() -> None:
    """Of what cannot become a marker only white space waits, since it may stand before one."""
    parser = OutputParser(WITH_TOOLS)
    assert [piece.text for piece in parser.push("hello ")] == ["hello"]
    assert [piece.text for piece in parser.push("world <b")] == [" world <b"]


def test_where_a_prompt_leaves_the_model() -> None:
    """By the end of the prompt."""
    assert find_markers("{% if '</think>' in content %}") == THINK and find_markers("plain") is None
    assert place_in("assistant\n<think>\n", THINK) == "inside"
    assert place_in("assistant\n<think>\n\n</think>\n\n", THINK) == "over"
    assert place_in("<think>old</think> assistant\n", THINK) == "before"
