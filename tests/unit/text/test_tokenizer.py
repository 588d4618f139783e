"""The tokenizer built from a GGUF's metadata."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import pre_tokenizers

from helexa.errors import ModelFileError, RequestError
from helexa.text.tokenizer import Tokenizer

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def metadata(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    """A vocabulary of all bytes, a few merges and a few tokens that are not text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["he", "ll", "hell", "hello", "Ġhe", "12", "Ġ1", "ĠĠ"]
    other = [
        ("<|endoftext|>", CONTROL),
        ("<|im_end|>", CONTROL),
        ("<|im_end|>x", CONTROL),
        ("<think>", USER_DEFINED),
        ("[PAD]", UNUSED),
    ]
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*letters, *merged, *(token for token, _ in other)],
        "tokenizer.ggml.token_type": [NORMAL] * (len(letters) + len(merged)) + [kind for _, kind in other],
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "Ġ he", "1 2", "Ġ 1", "Ġ Ġ"],
        "tokenizer.ggml.bos_token_id": 264,
        "tokenizer.ggml.eos_token_id": 265,
        "tokenizer.ggml.add_bos_token": False,
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(id) for id in ids]


def test_merges_and_pre_tokenizers() -> None:
    """Each pre-tokenizer cuts as its models were trained: digits alone, in threes, or in runs."""
    smollm = Tokenizer.from_gguf(metadata("smollm"))
    assert names(smollm, smollm.encode(" hello 1212")) == [" ", "hello", " ", "1", "2", "1", "2"]
    gpt2 = Tokenizer.from_gguf(metadata("gpt-2"))
    assert names(gpt2, gpt2.encode(" 1212")) == [" ", "12", "12"]
    qwen2 = Tokenizer.from_gguf(metadata("qwen2"))
    assert names(qwen2, qwen2.encode(" 1212")) == [" ", "1", "2", "1", "2"]
    assert qwen2.encode("e\u0301") == qwen2.encode("é"), "composed first"
    llama = Tokenizer.from_gguf(metadata("llama-bpe"))
    assert names(llama, llama.encode(" 1212")) == [" ", "12", "1", "2"]


def test_a_whole_word_needs_no_merges() -> None:
    """llama-bpe takes a word that is a token as it is, where merges alone would not get there."""
    changes = {"tokenizer.ggml.merges": ["h e"]}
    llama, smollm = Tokenizer.from_gguf(metadata("llama-bpe", **changes)), Tokenizer.from_gguf(metadata("smollm", **changes))
    assert names(llama, llama.encode("hello")) == ["hello"]
    assert names(smollm, smollm.encode("hello")) == ["he", "l", "l", "o"]


def test_special_tokens() -> None:
    """Control tokens in a text are those tokens or ordinary text, as asked; the longest counts; user-defined ones always do."""
    tokenizer = Tokenizer.from_gguf(metadata())
    assert tokenizer.control_ids == {264, 265, 266}
    assert tokenizer.encode("a<|im_end|>b")[1] == 265
    assert tokenizer.encode("<|im_end|>x") == [266]
    plain = tokenizer.encode("a<|im_end|>b", special=False)
    assert 265 not in plain
    assert b"".join(map(tokenizer.token_bytes, plain)) == b"a<|im_end|>b"
    assert tokenizer.encode("<think>", special=False) == tokenizer.encode("<think>") == [267]


def test_token_bytes_and_text() -> None:
    """Control and unused tokens are no text; their names are for logprobs; a lone byte of a character shows as U+FFFD."""
    tokenizer = Tokenizer.from_gguf(metadata())
    assert tokenizer.token_bytes(265) == b"" and tokenizer.token_text(265) == "<|im_end|>"
    assert tokenizer.token_bytes(267) == b"<think>"
    assert tokenizer.token_bytes(268) == b""
    first, second = tokenizer.encode("é")
    assert (tokenizer.token_bytes(first), tokenizer.token_bytes(second)) == (b"\xc3", b"\xa9")
    assert tokenizer.token_text(first) == "\ufffd"
    assert tokenizer.vocab == 269
    for outside in (-1, 269, 2**31):
        assert tokenizer.token_bytes(outside) == b"" and tokenizer.token_text(outside) == ""


def test_every_byte_has_its_letter() -> None:
    """The 256 letters stand for the 256 bytes, as the library's byte level spells them."""
    tokenizer = Tokenizer.from_gguf(metadata())
    assert sorted(tokenizer.token_bytes(id) for id in range(256)) == [bytes([byte]) for byte in range(256)]
    text = "".join(map(chr, [*range(0x250), 0x20AC, 0xFFFD, 0x1F600]))
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_eos_ids() -> None:
    """The named ones, and control tokens spelled as an end; not the same spelling as ordinary text."""
    assert Tokenizer.from_gguf(metadata()).eos_ids == [264, 265]
    kinds = metadata()["tokenizer.ggml.token_type"]
    kinds[264] = NORMAL
    assert Tokenizer.from_gguf(metadata(**{"tokenizer.ggml.token_type": kinds})).eos_ids == [265]
    assert Tokenizer.from_gguf(metadata(**{"tokenizer.ggml.eot_token_id": 3})).eos_ids == [3, 264, 265]


def test_bos() -> None:
    """The file says whether prompts start with bos; where it does not, the pre-tokenizer's family does. `encode` adds none."""
    silent = {"tokenizer.ggml.add_bos_token": None}
    assert Tokenizer.from_gguf(metadata("llama-bpe", **silent)).add_bos
    assert not Tokenizer.from_gguf(metadata("smollm", **silent)).add_bos
    told = Tokenizer.from_gguf(metadata("smollm", **{"tokenizer.ggml.add_bos_token": True}))
    assert told.add_bos and told.bos_id == 264
    assert told.encode("") == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert', which is not served; served: gpt2 (byte-level BPE), llama (SentencePiece)"),
        ({"tokenizer.ggml.model": None}, "None, which is not served"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken', which is not served; served: gpt-2, smollm, starcoder, "),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is None"),
        ({"tokenizer.ggml.pre": ["smollm"]}, "not served"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.tokens": "abc"}, "tokenizer.ggml.tokens is missing or is not an array of strings"),
        ({"tokenizer.ggml.tokens": ["a", ["b"]]}, "array of strings"),
        ({"tokenizer.ggml.tokens": ["a"] * 269}, "'a' appears twice"),
        ({"tokenizer.ggml.token_type": [1]}, "1 entries for 269 tokens"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.merges": ["hello"]}, "'hello' joins no two tokens"),
        ({"tokenizer.ggml.merges": ["z z"]}, "'z z' joins no two tokens"),
        ({"tokenizer.ggml.merges": [" h"]}, "joins no two tokens"),
        ({"tokenizer.ggml.eos_token_id": 269}, "eos_token_id is 269"),
        ({"tokenizer.ggml.bos_token_id": -1}, "bos_token_id is -1"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, "bos_token_id is missing"),
    ],
)
def test_damaged_or_unserved(changes: dict[str, Any], expected: str) -> None:
    """Each is one line that names the file, the field and what is served."""
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_gguf(metadata(**changes), "m.gguf")
    assert caught.value.message.startswith("m.gguf: ") and expected in caught.value.message


def test_half_a_surrogate_pair() -> None:
    """JSON can carry it, no text can: the request's fault."""
    with pytest.raises(RequestError, match="surrogate"):
        Tokenizer.from_gguf(metadata()).encode("a\ud83db")
