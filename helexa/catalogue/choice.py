"""Which of several models a name means. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from helexa.errors import ModelSourceError

Role = Literal["gguf", "safetensors"]

BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
INDEX = "model.safetensors.index.json"
MOST_LISTED = 40

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.(gguf|safetensors)$", re.IGNORECASE)


class Candidate(NamedTuple):
    """A file that a source offers: its path there, and its size where known."""

    path: str
    bytes: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Model(NamedTuple):
    """A model that a source offers. `files` are all that it needs; the first is what it is called by."""

    role: Role
    files: tuple[Candidate, ...]

    @property
    def path(self) -> str:
        return self.files[0].path

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def choose(files: Sequence[Candidate], pick: str, source: str, room: int = 0) -> Model:
    """The one model that `pick` names: a path, a file name, or a quantisation in the file name; empty: the only one there is.

    ModelSourceError lists the candidates with their sizes, and says which are larger than `room` bytes (0: not known).
    """
    models = offered(files, pick)
    if not models:
        raise ModelSourceError(f"{source}: there is no .gguf and no .safetensors file{instead(files)}; choose another source")
    exact = [model for model in models if any(pick in (file.path, file.name) for file in model.files)]
    chosen = exact or [model for model in models if _matches(model, pick)]
    if len(chosen) == 1:
        check_whole(chosen[0], source)
        return chosen[0]
    what = f"{len(chosen)} models fit {pick}" if chosen and pick else f"none fits {pick}" if pick else f"{len(chosen)} models"
    raise ModelSourceError(f"{source}: {what}; add :FILE or :QUANT to the name, of: {listed(chosen or models, room)}")


def offered(files: Sequence[Candidate], pick: str = "") -> list[Model]:
    """The models among files; `pick` may name one that is not looked for by itself."""
    return [*_ggufs(files), *_safetensors(files, pick)]


def listed(models: Sequence[Model], room: int = 0) -> str:
    """The models with their sizes, and which are too large for `room` bytes of memory (0: not known)."""
    return ", ".join(
        f"{model.path} ({size(model.bytes)}{', too large for this machine' if 0 < room < model.bytes else ''})"
        for model in sorted(models)[:MOST_LISTED]
    )


def _ggufs(files: Sequence[Candidate]) -> list[Model]:
    """One a file, or one a first part with the parts beside it."""
    found = [file for file in files if file.name.lower().endswith(".gguf")]
    models = []
    for file in found:
        part = _PART.search(file.path)
        if part is None:
            models.append(Model("gguf", (file,)))
        elif int(part[1]) == 1:
            stem = file.path[: part.start()]
            others = sorted(other for other in found if _PART.sub("", other.path) == stem and other != file)
            models.append(Model("gguf", (file, *others)))
    return models


def _safetensors(files: Sequence[Candidate], pick: str) -> list[Model]:
    """That of the uppermost folder, and those that `pick` names: an index with its parts, or a file by itself, with what lies
    beside them."""
    models = []
    for folder in sorted({file.path.rpartition("/")[0] for file in files if file.name.endswith(".safetensors")}):
        if folder and not pick.startswith(f"{folder}/"):
            continue
        inside = {file.name: file for file in files if file.path.rpartition("/")[0] == folder}
        weights = [file for name, file in sorted(inside.items()) if name.endswith(".safetensors")]
        parts = [file for file in weights if _PART.search(file.name)]
        beside = tuple(inside[name] for name in BESIDE if name in inside)
        if INDEX in inside and parts:
            models.append(Model("safetensors", (inside[INDEX], *parts, *beside)))
        models += [Model("safetensors", (file, *beside)) for file in weights if file not in parts]
    return models


def check_whole(model: Model, source: str) -> None:
    """ModelSourceError where a file that the model needs is not there."""
    part = _PART.search(model.path)
    if model.role == "gguf" and part is not None and len(model.files) != int(part[2]):
        raise ModelSourceError(f"{source}: {model.path} has {int(part[2])} parts, of which {len(model.files)} are there")
    missing = [name for name in BESIDE[:2] if name not in {file.name for file in model.files}]
    if model.role == "safetensors" and missing:
        raise ModelSourceError(
            f"{source}: {model.path} lies without {' and '.join(missing)}, which are needed; choose a whole model"
        )


def _matches(model: Model, pick: str) -> bool:
    """A projector is no model of its own; a quantisation stands between separators, and Q4_K is not Q4_K_M."""
    name = model.files[0].name
    if name.startswith("mmproj"):
        return False
    return not pick or re.search(rf"(^|[-._]){re.escape(pick)}([-.]|$)", name, re.IGNORECASE) is not None


def instead(files: Sequence[Candidate]) -> str:
    """What there is in place of a model."""
    pickled = next((file.name for file in files if file.name.endswith((".bin", ".pt", ".pth", ".ckpt"))), None)
    return f" ({pickled} is pickled, which can run code and is not read)" if pickled else ""


def size(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def plain_name(name: str) -> str:
    """A file name without anything a path or a shell could take for its own."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", re.split(r"[/\\]", name)[-1]).lstrip(".-") or "model.gguf"
