"""The configuration tree: defaults, checks, nearest names, round trips."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from helexa import config as configuration
from helexa.commands import check_config
from helexa.errors import ConfigError

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_tree_survives_its_json(tmp_path):
    """What the supervisor writes is what a child reads."""
    tree = configuration.load(None, {"server.port": 9000, "aliases": {"mine": "file:/m.gguf"}, "admission.seats": 3})
    assert configuration.from_json(configuration.to_json(tree)) == tree


def test_file_then_flags(tmp_path):
    """A flag wins over the file, the file over the default."""
    file = tmp_path / "helexa.toml"
    file.write_text("offline = true\n[server]\nport = 9000\nhost = '0.0.0.0'\n")
    tree = configuration.load(file, {"server.port": 9001})
    assert (tree.server.port, tree.server.host, tree.offline) == (9001, "0.0.0.0", True)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"server.prot": 1}, "did you mean `server.port`"),
        ({"sever.port": 1}, "did you mean `server`"),
        ({"port": 1}, "did you mean `server.port`"),
        ({"server.port": "8000"}, "expected a whole number"),
        ({"server.port": True}, "expected a whole number"),
        ({"server.port": 0}, "between 1 and 65535"),
        ({"admission.queue_wait_s": float("nan")}, "at least 0"),
        ({"admission.seats": "many"}, 'expected a whole number or "auto"'),
        ({"sampling.unseeded": "maybe"}, '"random" or "prompt"'),
        ({"aliases": {"a": 1}}, "a table of a string"),
        ({"server": 3}, "is a section"),
    ],
)
def test_what_is_wrong_is_named(flags, expected):
    """Unknown keys name the nearest known one; wrong values say what fits."""
    with pytest.raises(ConfigError, match=None) as caught:
        configuration.load(None, flags)
    assert expected in caught.value.message and "\n" not in caught.value.message


def test_which_file_counts(tmp_path, monkeypatch):
    """The flag, then $HELEXA_CONFIG, then ./helexa.toml, then the user's own."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    environ = {"XDG_CONFIG_HOME": str(home)}
    assert configuration.find_file(None, environ) is None
    (home / "helexa").mkdir(parents=True)
    (home / "helexa" / "helexa.toml").touch()
    assert configuration.find_file(None, environ) == home / "helexa" / "helexa.toml"
    Path("helexa.toml").touch()
    assert configuration.find_file(None, environ) == Path("helexa.toml")
    assert configuration.find_file(None, environ | {"HELEXA_CONFIG": "/x"}) == Path("/x")
    assert configuration.find_file("/y", environ | {"HELEXA_CONFIG": "/x"}) == Path("/y")


def test_the_printed_keys_are_a_configuration_of_the_defaults(tmp_path, capsys):
    """`helexa check-config --list` prints TOML that loads to the defaults, so it can be a file to start from."""
    import sys

    check_config.list_keys(sys.stdout)
    text = capsys.readouterr().out
    (tmp_path / "helexa.toml").write_text(text)
    tomllib.loads(text)
    assert configuration.load(tmp_path / "helexa.toml", {}) == configuration.load(None, {})


def test_every_key_is_in_the_documentation():
    """docs/configuration.md holds exactly what `check-config --list` prints."""
    import io

    out = io.StringIO()
    check_config.list_keys(out)
    assert out.getvalue().strip() in (DOCS / "configuration.md").read_text()
