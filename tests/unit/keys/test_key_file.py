"""The key file: what is kept of a key, who may read it, and what is believed."""

from __future__ import annotations

import json
import os
import stat

import pytest

from helexa.keys import key_file
from helexa.keys.key_book import KeyBook
from helexa.keys.key_file import KeyFileError


def write(path, keys) -> None:
    key_file.save(path, keys)


def test_a_key_is_found_by_itself_alone_and_kept_nowhere(tmp_path):
    """The file, 0600, holds its SHA-256; a near miss finds nothing."""
    path = tmp_path / "keys.json"
    made = [key_file.make(name, concurrency=2, weight=1.5) for name in ("one", "two")]
    write(path, [key for key, _ in made])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = key_file.load(path)
    assert keys == [key for key, _ in made]
    for key, token in made:
        assert token.startswith("hx-") and len(token) == 46
        assert token not in path.read_text() and token[3:] not in path.read_text()
        assert key_file.find(keys, token) == key
        assert key_file.find(keys, token[:-1]) is None and key_file.find(keys, token.upper()) is None
    assert key_file.find(keys, "") is None and key_file.find(keys, "\udcff") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_file_that_others_may_read_is_not_believed(tmp_path, mode):
    """The message has the command that mends it."""
    path = tmp_path / "keys.json"
    write(path, [])
    os.chmod(path, mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        key_file.load(path)


GOOD = {"id": "key-1", "name": "n", "digest": "0" * 64, "created": 1}


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"version": 2, "keys": []},
        {"version": 1},
        {"version": 1, "keys": [1]},
        {"version": 1, "keys": [{**GOOD, "extra": 1}]},
        {"version": 1, "keys": [{**GOOD, "weight": 0}]},
        {"version": 1, "keys": [{**GOOD, "concurrency": -1}]},
        {"version": 1, "keys": [{**GOOD, "concurrency": True}]},
        {"version": 1, "keys": [{**GOOD, "weight": float("nan")}]},
        {"version": 1, "keys": [{**GOOD, "id": ""}]},
        {"version": 1, "keys": [{**GOOD, "digest": "abc"}]},
        {"version": 1, "keys": [{name: value for name, value in GOOD.items() if name != "digest"}]},
    ],
)
def test_a_damaged_file_is_not_believed(tmp_path, table):
    path = tmp_path / "keys.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(table))
    with pytest.raises(KeyFileError) as caught:
        key_file.load(path)
    assert str(path) in caught.value.message and "\n" not in caught.value.message


def test_the_book_follows_the_file_and_fails_closed(tmp_path):
    """Added and revoked keys count at once; a file that went away, or is open to others, lets nobody in until it is mended."""
    path = tmp_path / "keys.json"
    (first, token), (second, other) = key_file.make("one"), key_file.make("two")
    write(path, [first])
    book = KeyBook(str(path))
    assert book.enabled and book.find(token) == first and book.find(other) is None
    write(path, [first, second])
    assert book.find(other) == second and book.named(second.id) == second
    write(path, [second])
    assert book.find(token) is None and book.named(first.id) is None
    os.chmod(path, 0o644)
    with pytest.raises(KeyFileError):
        book.find(other)
    assert book.named(second.id) is None
    os.chmod(path, 0o600)
    assert book.find(other) == second
    path.unlink()
    for _ in range(2):
        with pytest.raises(KeyFileError):
            book.find(other)
    write(path, [second])
    assert book.find(other) == second


def test_without_a_file_there_are_no_keys():
    book = KeyBook("")
    assert not book.enabled and book.keys() == []
