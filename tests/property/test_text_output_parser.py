"""However a reply is cut, its pieces are the same, its calls have valid arguments, and nothing of it is lost."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from helexa.text.output_parser import OutputParser, ParseRules, Piece
from helexa.text.reasoning import KNOWN
from helexa.text.tool_formats import Tool, ToolFormat
from helexa.text.tool_formats.llama import LlamaJson
from helexa.text.tool_formats.mistral import MistralArgs, MistralList
from helexa.text.tool_formats.tagged import TaggedJson, TaggedXml

FORMATS: list[ToolFormat] = [TaggedJson(), TaggedXml(), MistralList(), MistralArgs(), LlamaJson()]
TOOLS = {"f": Tool("f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})}
WORDS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
    "<function=f>", "</function>", "<parameter=a>", "</parameter>",
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": {}}', "[", "]", "{", "}", "; ",
    '"', "\\", "\n", " ", "hello", "<", "f", "1", "é",
]  # fmt: skip
replies = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)
cuts = st.lists(st.integers(0, 200), max_size=12)


def pieces_of(text: str, at: list[int], rules: ParseRules) -> tuple[list[tuple[str, str, str]], list[Piece]]:
    """(kind, name, text), neighbours of one kind as one, and the pieces as they came."""
    parser, start, raw = OutputParser(rules), 0, list[Piece]()
    for end in [*sorted(min(cut, len(text)) for cut in at), len(text)]:
        raw += parser.push(text[start:end])
        start = end
    raw += parser.flush()
    joined: list[tuple[str, str, str]] = []
    for piece in raw:
        if joined and piece.kind != "call" and joined[-1][0] == piece.kind:
            joined[-1] = (piece.kind, "", joined[-1][2] + piece.text)
        else:
            joined.append((piece.kind, piece.name, piece.text))
    return joined, raw


def letters(text: str) -> str:
    return "".join(text.split())


@given(
    replies,
    cuts,
    st.sampled_from(FORMATS),
    st.booleans(),
    st.sampled_from(["before", "inside", "over"]),
    st.booleans(),
)
def test_cuts_do_not_matter_and_nothing_is_lost(
    text: str, at: list[int], format: ToolFormat, reasons: bool, place: str, offered: bool
) -> None:
    """The pieces of any cutting are those of the whole, in the order of the reply, and `taken` rises. Without a call all letters
    but those of the reasoning's markers are in them."""
    rules = ParseRules(markers=KNOWN[0] if reasons else None, place=place, format=format, tools=TOOLS if offered else {})  # type: ignore[arg-type]
    whole, _ = pieces_of(text, [], rules)
    cut, raw = pieces_of(text, at, rules)
    assert cut == whole
    assert [piece.taken for piece in raw] == sorted(piece.taken for piece in raw)
    rest = letters(text)
    for kind, name, piece in whole:
        if kind == "call":
            assert name in rules.tools and isinstance(json.loads(piece), dict)
            continue
        found = rest.find(letters(piece))
        assert found >= 0, "a piece that the reply does not have"
        rest = rest[found + len(letters(piece)) :]
    if not any(kind == "call" for kind, _, _ in whole):
        kept = letters("".join(piece for _, _, piece in whole))
        assert len(letters(text)) - len(kept) in (0, len("<think>"), len("</think>"), len("<think></think>"))
