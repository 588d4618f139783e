"""Tokenizers of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vocabularies import byte_level_tokenizer, pieces_tokenizer, write_tokenizer

from helexa.errors import ModelFileError
from helexa.formats.hf_vocabulary import read_tokenizer_files
from helexa.text.tokenizer import Tokenizer


def opened(folder: Path) -> Tokenizer:
    return Tokenizer.from_files(read_tokenizer_files(folder))


def test_byte_level(tmp_path: Path) -> None:
    """Ids are the library's own; special tokens are text or themselves, as asked; added ones that are not special are text."""
    made = byte_level_tokenizer()
    config = {"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>"}
    tokenizer = opened(write_tokenizer(tmp_path, made, tokenizer_config=config))
    for text in ("hello he", "é<think>日", "", "a<|im_end|>b"):
        assert tokenizer.encode(text) == made.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    think, begin, im_end, end = (made.token_to_id(name) for name in ("<think>", "<|begin|>", "<|im_end|>", "<|end|>"))
    assert tokenizer.control_ids == {begin, im_end, end} and tokenizer.token_bytes(think) == b"<think>"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.add_eos) == (begin, end, True, False)
    assert tokenizer.eos_ids == [im_end, end], "the named one, and control tokens that are spelled as an end"
    assert im_end in tokenizer.encode("a<|im_end|>b") and im_end not in tokenizer.encode("a<|im_end|>b", special=False)


def test_pieces(tmp_path: Path) -> None:
    """SentencePiece in a tokenizer.json: bytes stand in, blanks are blanks, the one before the text is not its own."""
    made = pieces_tokenizer()
    tokenizer = opened(write_tokenizer(tmp_path, made, config={"bos_token_id": 1, "eos_token_id": [2]}))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("the ж")] == [" the", " ", "\ufffd", "\ufffd"]
    assert tokenizer.decode(tokenizer.encode("the ж\n")) == "the ж\n"
    assert tokenizer.encode("the </s>") == made.encode("the </s>", add_special_tokens=False).ids
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.eos_ids) == (1, 2, False, [2])


def test_who_says_what(tmp_path: Path) -> None:
    """tokenizer_config.json counts before the post-processor; generation_config.json and config.json add ends."""
    folder = write_tokenizer(
        tmp_path,
        byte_level_tokenizer(),
        tokenizer_config={"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": False, "add_eos_token": True},
        generation_config={"eos_token_id": [3, 5, 10**9]},
        config={"eos_token_id": 4},
    )
    tokenizer = opened(folder)
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, True)
    assert {3, 4, 5} < set(tokenizer.eos_ids) and 10**9 not in tokenizer.eos_ids


def document(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(byte_level_tokenizer().to_str())
    return made | changes


def with_model(**changes: Any) -> dict[str, Any]:
    made = document()
    return made | {"model": made["model"] | changes}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (with_model(type="WordPiece"), "'WordPiece', which is not served; served: BPE"),
        (with_model(vocab=[]), "`vocab` is missing or is not an object"),
        (with_model(vocab={"a": -1}), "'a' has the id -1"),
        (with_model(vocab={"a": True}), "'a' has the id True"),
        (with_model(vocab={"a": 10**12}), "'a' has the id 1000000000000"),
        (with_model(vocab={"a": 1, "b": 1}), "two tokens have one id"),
        (with_model(merges=["no such"]), "cannot be read"),
        (document(model=None), "`model` is missing"),
        (document(added_tokens=[{"content": "x"}]), "is no token"),
        (document(added_tokens={}), "is no token"),
        (document(pre_tokenizer=None, decoder=None), "neither byte-level (ByteLevel) nor SentencePiece's"),
        (document(version="no"), "cannot be read"),
        ({}, "`model` is missing"),
    ],
)
def test_damaged_or_unserved(made: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """Each is one line that names the file."""
    with pytest.raises(ModelFileError) as caught:
        opened(write_tokenizer(tmp_path, made, tokenizer_config={"add_bos_token": False}))
    assert caught.value.message.startswith(f"{tmp_path}/tokenizer.json: ") and expected in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"bos_token": "<nobody>"}, "bos_token '<nobody>' is no token"),
        ({}, "prompts start with bos, but bos_token is missing"),
        ({"bos_token": "<|end|>"}, "prompts start with <|begin|>, not with bos alone"),
        ({"bos_token": "<|begin|>", "add_eos_token": True}, "prompts end with eos, but eos_token is missing"),
    ],
)
def test_configs_that_do_not_fit(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        opened(write_tokenizer(tmp_path, byte_level_tokenizer(), tokenizer_config=config))
    assert expected in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, no JSON, no object, too deep, too large, not UTF-8: each is one line with the remedy."""
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: missing; a folder of safetensors needs its tokenizer\.json"):
        read_tokenizer_files(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"tokenizer\.model is there, which is not read"):
        read_tokenizer_files(tmp_path)
    write_tokenizer(tmp_path, byte_level_tokenizer())
    broken = tmp_path / "tokenizer_config.json"
    for data, expected in (
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, "nested deeper than 64"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "' + b"x" * (4 * 1024 * 1024) + b'"}', "at most 4194304 are read"),
        (b"", "empty"),
    ):
        broken.write_bytes(data)
        with pytest.raises(ModelFileError, match=expected) as caught:
            read_tokenizer_files(tmp_path)
        assert str(broken) in caught.value.message
