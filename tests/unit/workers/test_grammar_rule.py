"""Grammars in the worker: what may come next is a function of the text and the ids so far, and one row's failure is its own."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helexa.formats.gguf import GGUFFile
from helexa.text.grammar import Context, OutputFormat, compose
from ipc.messages import Plan, SamplingParams, SeatJoin
from workers.grammar import GrammarError, Grammars
from workers.ops.reference import ReferenceOps
from workers.runner import Runner

END = 2
FREE = Context(None, "over", {})


@pytest.fixture(scope="module")
def file(tiny_model_path) -> GGUFFile:
    return GGUFFile.open(tiny_model_path)


@pytest.fixture(scope="module")
def grammars(file) -> Grammars:
    return Grammars(file, [END], len(file.metadata["tokenizer.ggml.tokens"]))


def of(kind: Any, value: Any) -> str:
    return compose(OutputFormat(kind, value, "f"), None, FREE)


def text_of(ids: list[int], file: GGUFFile) -> str:
    from helexa.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(file.metadata)
    return b"".join(tokenizer.token_bytes(id) for id in ids).decode()


def walk(grammars: Grammars, text: str, seed: int, most: int = 400) -> tuple[list[int], bool]:
    """A random reply that keeps to the grammar, and whether it ended. After some tokens it ends as soon as it may."""
    chance, state, ids = random.Random(seed), grammars.start(text), list[int]()
    while len(ids) < most:
        allowed = np.flatnonzero(grammars.allowed(state, ids)).tolist()
        assert allowed, "nothing may come next"
        if END in allowed and (len(allowed) == 1 or len(ids) > 40):
            return ids, True
        allowed = [id for id in allowed if id != END]
        closing = [id for id in allowed if chr(max(0, id - 3)) in '"]}'] if len(ids) > 60 else []
        ids.append(chance.choice(closing or allowed))
    return ids, False


@pytest.mark.parametrize(
    ("kind", "value", "matches"),
    [
        ("choice", ["yes", "no"], lambda text: text in ("yes", "no")),
        ("regex", "(th)+[0-9]{2}", lambda text: text.rstrip("0123456789") == "th" * (len(text[:-2]) // 2)),
    ],
)
def test_a_reply_keeps_to_its_grammar(grammars, file, kind, value, matches):
    """Random replies match, and the end comes when nothing else may."""
    for seed in range(20):
        ids, ended = walk(grammars, of(kind, value), seed)
        assert not ended or matches(text_of(ids, file))
    assert walk(grammars, of("choice", ["yes", "no"]), 1)[1]


def test_a_matcher_that_is_lost_is_made_again(grammars):
    """After every token, a fresh state and one that has seen other ids allow what the running one does."""
    text = of("json_schema", {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}})
    ids, _ = walk(grammars, text, 3)
    running, other = grammars.start(text), grammars.start(text)
    grammars.allowed(other, ids)
    for length in range(len(ids)):
        expected = grammars.allowed(running, ids[:length])
        assert (grammars.allowed(grammars.start(text), ids[:length]) == expected).all()
        assert (grammars.allowed(other, ids[:length]) == expected).all()


def test_what_does_not_compile_or_match_is_an_error(grammars):
    """For that sequence; the next one is served."""
    for text in ("nonsense", of("regex", "((((")):
        with pytest.raises(GrammarError):
            grammars.allowed(grammars.start(text), [])
    with pytest.raises(GrammarError):
        grammars.allowed(grammars.start(of("choice", ["yes"])), [5, 5, 5])
    assert grammars.allowed(grammars.start(of("choice", ["yes"])), []).sum() == 1


@pytest.mark.parametrize(
    "regex", ["(a+)+b", "(a|a)*b", "((a{1,1000}){1,1000}){1,1000}", "(.*a){200}(b|c){1,5000}", "(a|b)*a(a|b){60}"]
)
def test_hostile_patterns_cost_little(grammars, regex):
    """They run within the limits, or end their own sequence: no step takes fuel without bound."""
    state = grammars.start(of("regex", regex))
    try:
        for length in range(30):
            grammars.allowed(state, [3 + ord("a")] * length)
    except GrammarError as error:
        assert "limit" in str(error) or "too many" in str(error) or "fuel" in str(error) or "complex" in str(error)


# schemas that are small, and finite in depth
leaves = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 120},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 4},
        {"enum": ["a", 1, None]},
        {"const": [1, "x"]},
        {"type": "string", "pattern": "^[ab]{1,3}$"},
    ]
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c d"]), inner, max_size=3).flatmap(
            lambda properties: st.sets(st.sampled_from(sorted(properties) or ["-"])).map(
                lambda names: {
                    "type": "object",
                    "properties": properties,
                    "required": sorted(names & set(properties)),
                    "additionalProperties": False,
                }
            )
        ),
        inner.map(lambda item: {"type": "array", "items": item, "maxItems": 3}),
        st.lists(inner, min_size=1, max_size=2).map(lambda arms: {"anyOf": arms}),
    ),
    max_leaves=5,
)


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(conforms(value, arm) for arm in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(known)
            and all(conforms(item, known[name]) for name, item in value.items())
        )
    if kind == "array":
        return isinstance(value, list) and len(value) <= 3 and all(conforms(item, schema["items"]) for item in value)
    if kind == "integer":
        return type(value) is int and -5 <= value <= 120
    if kind == "string":
        return isinstance(value, str) and (
            len(value) <= 4 if "maxLength" in schema else set(value) <= {"a", "b"} and 1 <= len(value) <= 3
        )
    return value is None if kind == "null" else isinstance(value, bool)


@settings(max_examples=1000)
@given(schema=schemas, seed=st.integers(0, 2**16))
def test_generated_schemas(grammars, file, schema, seed):
    """A reply that ended is JSON of its schema, whatever the schema."""
    ids, ended = walk(grammars, of("json_schema", schema), seed)
    if ended:
        assert conforms(json.loads(text_of(ids, file)), schema)


def run(file: GGUFFile, grammar: str, neighbours: int, replay_at: int | None = None) -> list[int]:
    """A sampled reply of 12 tokens under a grammar; after `replay_at` of them its seat is lost and filled again."""
    runner = Runner(file, ReferenceOps(1), 0, [END])
    runner.allocate(32, 8)
    prompt, params = [10, 20, 30], SamplingParams(max_tokens=50, temperature=1.0, grammar=grammar)
    ids, computed, free = list(prompt), 0, SamplingParams(max_tokens=50)
    step = 0
    while len(ids) < len(prompt) + 12:
        step += 1
        plan = Plan(1, step, 1, [], [], [], [], [], [], [], [], [], [])
        if step == 1 or len(ids) - len(prompt) == replay_at:
            replay_at = None if step > 1 else replay_at
            plan.leaves.append(0)
            plan.joins.append(SeatJoin(0, 5, len(prompt), params))
            plan.block_seats += [0] * 2
            plan.blocks += [0, 1] if step == 1 else [10, 11]
            computed = 0
        plan.seats.append(0)
        plan.starts.append(computed)
        plan.counts.append(len(ids) - computed)
        plan.carried.append(len(ids) - computed)
        plan.ids += ids[computed:]
        plan.samples.append(True)
        for seat in range(1, neighbours + 1):
            plan.joins.append(SeatJoin(seat, seat, 2, free))
            plan.block_seats.append(seat)
            plan.blocks.append(20 + seat)
            plan.seats.append(seat)
            plan.starts.append(0)
            plan.counts.append(2)
            plan.carried.append(2)
            plan.ids += [40, 50 + step]
            plan.samples.append(True)
        result = runner.step(plan, 0, lambda: 0.0).result
        computed = len(ids)
        ids.append(result.ids[0])
    return ids[len(prompt) :]


def test_neighbours_and_losses_change_no_token(file):
    """Alone, beside others, and after its seat was lost, a reply under a grammar is the same."""
    grammar = of("regex", "[a-z ]{40}")
    expected = run(file, grammar, 0)
    assert run(file, grammar, 3) == expected == run(file, grammar, 2, replay_at=5)


def test_a_broken_grammar_ends_its_row_only(file):
    """The row's error says why; its neighbour draws what it would have drawn."""
    runner = Runner(file, ReferenceOps(1), 0, [END])
    runner.allocate(8, 4)

    def step(grammar: str) -> Any:
        plan = Plan(1, 1, 1, [0, 1], [], [0, 1], [0, 0], [2, 2], [2, 2], [True, True], [10, 20, 10, 20], [0, 1], [0, 1])
        plan.joins += [
            SeatJoin(0, 1, 2, SamplingParams(max_tokens=5, grammar=grammar)),
            SeatJoin(1, 1, 2, SamplingParams(max_tokens=5)),
        ]
        return runner.step(plan, 0, lambda: 0.0)

    broken, sound = step(of("regex", "(((")), step("")
    (error,) = broken.row_errors
    assert error.seat == 0 and "grammar" in error.error and broken.result.ids == [-1, sound.result.ids[1]]
    assert broken.may_end and sound.row_errors == []
