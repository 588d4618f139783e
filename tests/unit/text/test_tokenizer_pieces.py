"""SentencePiece vocabularies of a GGUF."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vocabularies import pieces_metadata

from helexa.errors import ModelFileError
from helexa.text.tokenizer import Tokenizer

GEMMA = {"tokenizer.ggml.add_space_prefix": False}


def names(tokenizer: Tokenizer, text: str, special: bool = True) -> list[str]:
    return [tokenizer.token_text(id) for id in tokenizer.encode(text, special)]


def test_the_best_scores_join_first() -> None:
    """Pieces are joined by score, not from the left, over the whole text: there is no cutting into words before."""
    tokenizer = Tokenizer.from_gguf(pieces_metadata(**GEMMA))
    assert names(tokenizer, "the hello") == ["t", "he", " hello"]
    assert names(tokenizer, "the", special=False) == ["t", "he"]
    assert names(tokenizer, " the") == [" the"]
    assert names(tokenizer, "aaaaa") == ["aa", "aaa"]
    assert names(tokenizer, "abab aba") == ["ab", "ab", " a", "b", "a"]


def test_a_blank_before_the_text() -> None:
    """Where the file does not say otherwise, each stretch of text gets one, and decoding takes that of the first away."""
    tokenizer = Tokenizer.from_gguf(pieces_metadata())
    assert names(tokenizer, "the") == [" the"]
    assert names(tokenizer, "") == []
    assert names(tokenizer, "the</s>the") == [" the", "</s>", " the"]
    assert tokenizer.decode(tokenizer.encode("the hello")) == "the hello"
    assert tokenizer.decode(tokenizer.encode("  the")) == "  the"
    gemma = Tokenizer.from_gguf(pieces_metadata(**GEMMA))
    assert gemma.decode(gemma.encode(" the")) == " the"


def test_bytes_stand_in() -> None:
    """What no piece has comes as its bytes, and those are the token's text."""
    tokenizer = Tokenizer.from_gguf(pieces_metadata(**GEMMA))
    ids = tokenizer.encode("ж\x00")
    assert [tokenizer.token_bytes(id) for id in ids] == [b"\xd0", b"\xb6", b"\x00"]
    assert names(tokenizer, "<0x41>", special=False) == [*"<", "0", "x", "4", "1", ">"], "a byte's name is no byte"
    assert tokenizer.decode(ids) == "ж\x00"


def test_user_defined_and_control_tokens() -> None:
    """User-defined ones are found first, longest first; control tokens only where they are asked for."""
    tokenizer = Tokenizer.from_gguf(pieces_metadata(**GEMMA))
    assert names(tokenizer, "a\n\n\nb") == ["a", "\n\n", "\n", "b"]
    assert names(tokenizer, "a    b", special=False) == ["a", "   ", " ", "b"]
    assert names(tokenizer, "<s>a") == ["<s>", "a"]
    assert tokenizer.token_bytes(1) == b"" and 1 not in tokenizer.encode("<s>a", special=False)
    assert tokenizer.control_ids == {0, 1, 2}


def test_bos_and_eos() -> None:
    """Prompts start with bos where the file does not say otherwise; with eos they end only where it says so."""
    plain = Tokenizer.from_gguf(pieces_metadata())
    assert (plain.add_bos, plain.add_eos, plain.bos_id, plain.eos_id) == (True, False, 1, 2)
    told = pieces_metadata(**{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True})
    assert (Tokenizer.from_gguf(told).add_bos, Tokenizer.from_gguf(told).add_eos) == (False, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokenizer.ggml.scores": None}, "tokenizer.ggml.scores is missing"),
        ({"tokenizer.ggml.scores": np.zeros(3, np.float32)}, "not a number for each token"),
        ({"tokenizer.ggml.scores": np.full(303, np.nan, np.float32)}, "not a number for each token"),
        ({"tokenizer.ggml.scores": "abc"}, "scores is missing"),
        ({"tokenizer.ggml.bos_token_id": None}, "start with bos, but tokenizer.ggml.bos_token_id is missing"),
        ({"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": None}, "end with eos"),
    ],
)
def test_damaged(changes: dict[str, Any], expected: str) -> None:
    """Each is one line that names the file and the field."""
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_gguf(pieces_metadata(**changes), "m.gguf")
    assert caught.value.message.startswith("m.gguf: ") and expected in caught.value.message


def test_hostile_pieces() -> None:
    """A piece of absurd length, which could be joined in as many ways, is refused; so are two pieces that are one."""
    long = pieces_metadata()
    long["tokenizer.ggml.tokens"] = [*long["tokenizer.ggml.tokens"][:-1], "a" * 5000]
    with pytest.raises(ModelFileError, match="5000 characters, at most 512"):
        Tokenizer.from_gguf(long)
    twice = pieces_metadata()
    twice["tokenizer.ggml.tokens"] = [*twice["tokenizer.ggml.tokens"][:-1], " t"]
    with pytest.raises(ModelFileError, match="' t' appears twice"):
        Tokenizer.from_gguf(twice)
