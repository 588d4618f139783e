"""Incremental detokenisation."""

from __future__ import annotations

from helexa.text.detokenizer import Detokenizer


def push_all(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(lambda id: pieces[id])
    return [detokenizer.push(id) for id in range(len(pieces))] + [detokenizer.flush()]


def test_a_character_is_never_split() -> None:
    """A character of four bytes over three tokens comes out whole, with the last of them."""
    assert push_all([b"a\xf0", b"\x9f\x98", b"\x80b"]) == ["a", "", "😀b", ""]


def test_nothing_is_held_that_is_whole() -> None:
    """Whole characters come out at once; a token of no text gives none."""
    assert push_all([b"hello", b"", " é".encode()]) == ["hello", "", " é", ""]


def test_broken_bytes() -> None:
    """A byte that can be part of no character is U+FFFD at once; one that waits in vain, when the next comes or at the end."""
    assert push_all([b"\xff", b"\xc3", b"x", b"\xe2\x82"]) == ["\ufffd", "", "\ufffdx", "", "\ufffd"]
