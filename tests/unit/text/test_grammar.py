"""Grammars as they are composed, judged by the library that runs them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from helexa.errors import RequestError
from helexa.text.grammar import MAX_GRAMMAR, Context, Forced, OutputFormat, compose
from helexa.text.output_parser import OutputParser, ParseRules
from helexa.text.reasoning import KNOWN
from helexa.text.tool_formats import Tool, ToolFormat
from helexa.text.tool_formats.llama import LlamaJson
from helexa.text.tool_formats.mistral import MistralArgs, MistralList
from helexa.text.tool_formats.tagged import TaggedJson, TaggedXml

FREE = Context(None, "over", {})
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CONTROL = {"[TOOL_CALLS]": 300, "[ARGS]": 301, "[THINK]": 302, "[/THINK]": 303}


class _Bytes:
    """Bytes, an end, and control tokens from 300 on."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (
        *(bytes([byte]) for byte in range(256)),
        b"<end>",
        *(f"<pad{n}>".encode() for n in range(43)),
        *map(str.encode, CONTROL),
    )
    special_token_ids = tuple(range(256, 304))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=256)


def accepts(grammar: str, text: str, whole: bool = True, control: dict[str, int] = CONTROL) -> bool:
    """Whether the text, with tokens of `control` spelled out, is of the grammar; `whole` false: or can begin one that is."""
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    for spelling, id in control.items():
        text = text.replace(spelling, chr(0xE000 + id))
    ids = [id for letter in text for id in ([ord(letter) - 0xE000] if 0xE000 <= ord(letter) < 0xF000 else letter.encode())]
    return matcher.try_consume_tokens(ids) == len(ids) and (matcher.is_accepting() or not whole)


def of(kind: Any, value: Any, context: Context = FREE) -> str:
    return compose(OutputFormat(kind, value, "field"), None, context)


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("json_object", None, '{"a": [1, {"b": null}]}', "[1]"),
        ("json_schema", SCHEMA, '{"a": 1}', '{"a": "x"}'),
        ("json_schema", SCHEMA, '{\n  "a":1\n}', '{"b": 1}'),
        ("regex", "[a-c]+/x", "abc/x", "abd/x"),
        ("regex", "a\\/b\nc", "a/b\nc", "a/b c"),
        ("choice", ["yes", 'n"o'], 'n"o', "maybe"),
        ("grammar", 'start: "x" WORD\nWORD: /[a-z]+/', "xab", "xA"),
        ("grammar", 'root ::= "a"{2,3}', "aaa", "a"),
    ],
)
def test_each_kind(kind: Any, value: Any, good: str, bad: str) -> None:
    assert accepts(of(kind, value), good) and not accepts(of(kind, value), bad)


def test_white_space_in_json_is_bounded() -> None:
    """32 characters between tokens, not 33."""
    assert accepts(of("json_schema", SCHEMA), '{"a":' + " " * 32 + "1}") and not accepts(
        of("json_schema", SCHEMA), '{"a":' + " " * 33, False
    )


def test_a_client_cannot_steer_the_library() -> None:
    """Options of the library inside a schema are ours."""
    grammar = json.loads(of("json_schema", {**SCHEMA, "x-guidance": {"whitespace_pattern": ".*", "lenient": True}}))
    assert grammar["grammars"][1]["json_schema"]["x-guidance"] == {"whitespace_pattern": r"[ \n\r\t]{0,32}"}


@pytest.mark.parametrize("markers", [KNOWN[0], KNOWN[1]])
def test_the_grammar_begins_after_the_reasoning(markers: Any) -> None:
    """Before it, where the model may reason; within, where the prompt began it; markers are text or control tokens."""
    control = CONTROL if markers.open in CONTROL else {}
    before = of("choice", ["yes"], Context(markers, "before", control))
    assert accepts(before, "yes") and accepts(before, f"{markers.open}maybe\nnot{markers.close}\n\nyes")
    assert not accepts(before, f"{markers.open}maybe{markers.close}no", False) and not accepts(before, "maybe", False)
    inside = of("choice", ["yes"], Context(markers, "inside", control))
    assert accepts(inside, f"well{markers.close}yes") and not accepts(inside, "yes")
    assert accepts(of("choice", ["yes"], Context(markers, "over", control)), "yes")


FORMATS: list[ToolFormat] = [TaggedJson(), TaggedXml(), MistralList(), MistralArgs(), LlamaJson()]
TOOLS = [
    Tool("f", "", {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}}, "required": ["a", "s"]}),
    Tool("g-2"),
]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: type(format).__name__)
@pytest.mark.parametrize("control", [{}, CONTROL], ids=["as text", "as tokens"])
def test_forced_calls_are_what_the_parser_reads(format: ToolFormat, control: dict[str, int]) -> None:
    """What a model of that format would write is accepted, one call or several, and comes out of the parser as calls."""
    own = {marker: id for marker, id in control.items() if marker in format.markers}
    context = Context(None, "over", own)
    several, one = (compose(None, Forced(format, TOOLS, several), context) for several in (True, False))
    single = format.write([("f", {"a": 1, "s": "x <y>"})])
    both = format.write([("f", {"a": 1, "s": "x"}), ("g-2", {})])
    assert accepts(one, single, control=own) and accepts(several, single, control=own)
    assert accepts(several, both, control=own) and not accepts(one, both, control=own)
    for wrong in ("hello", format.write([("h", {})])):
        assert not accepts(several, wrong, False, own)
    parser = OutputParser(ParseRules(format=format, tools={tool.name: tool for tool in TOOLS}))
    pieces = parser.push(both) + parser.flush()
    assert [(piece.kind, piece.name) for piece in pieces] == [("call", "f"), ("call", "g-2")]


def test_a_format_beside_optional_calls() -> None:
    """With tools that need not be called the reply is a call or of the format; with nothing to force there is no grammar."""
    optional = Forced(TaggedJson(), TOOLS, True, optional=True)
    grammar = compose(OutputFormat("choice", ["yes"], "field"), optional, FREE)
    assert accepts(grammar, "yes") and accepts(grammar, TaggedJson().write([("g-2", {})]))
    assert compose(None, optional, FREE) == "" == compose(None, None, FREE)


def test_strictness_of_tools() -> None:
    """A keyword that cannot be followed is passed over, unless the tool is strict."""
    odd = {"type": "object", "properties": {}, "unevaluatedProperties": False}
    for strict, sound in ((False, True), (True, False)):
        grammar = compose(None, Forced(TaggedJson(), [Tool("f", "", odd, strict)], True), FREE)
        assert (LLMatcher.validate_grammar(grammar, TOKENIZER) == "") is sound


def test_what_cannot_be_composed_names_its_field() -> None:
    for kind, value in (("grammar", 'root ::= ((( "a"'), ("choice", ["x" * MAX_GRAMMAR])):
        with pytest.raises(RequestError) as caught:
            of(kind, value)
        assert caught.value.param == "field"
