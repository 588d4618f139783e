"""The `file` source: a .gguf file, a .safetensors file, or a folder that holds one model. Nothing is copied or changed."""

from __future__ import annotations

from pathlib import Path

from helexa.catalogue.choice import INDEX, Candidate, Model, check_whole, instead, listed, offered
from helexa.catalogue.model_files import ModelFiles
from helexa.catalogue.source import Source
from helexa.errors import ModelSourceError


def find(source: Source) -> ModelFiles | None:
    """The model at a path; None where there is none, or more than one."""
    path = Path(source.name)
    try:
        model = _model(path)
    except ModelSourceError:
        return None
    folder = path if path.is_dir() else path.parent
    opened = path if model.role == "safetensors" else folder / model.path
    return ModelFiles(source.given, str(source), {model.role: str(opened)}, model.bytes, "")


def missing(source: Source, room: int = 0) -> ModelSourceError:
    """Why `find` has nothing; what is larger than `room` bytes (0: not known) is said to be too large."""
    try:
        _model(Path(source.name), room)
    except ModelSourceError as error:
        return error
    return ModelSourceError(f"{source.name}: it has just come; try again")


def _model(path: Path, room: int = 0) -> Model:
    """Raises ModelSourceError."""
    if not path.exists():
        raise ModelSourceError(f"{path}: no such file; name a .gguf file, a .safetensors file, or a folder that holds a model")
    files = _candidates(path if path.is_dir() else path.parent)
    models = offered(files)
    if not path.is_dir():
        if not path.name.endswith((".safetensors", INDEX)):
            own = next((model for model in models if model.path == path.name), None)
            return own or Model("gguf", (Candidate(path.name, path.stat().st_size),))
        models = [model for model in models if any(file.name == path.name for file in model.files)]
    if not models:
        raise ModelSourceError(f"{path}: the folder holds no .gguf and no .safetensors file{instead(files)}; name one")
    if len(models) > 1:
        raise ModelSourceError(f"{path}: the folder holds {len(models)} models; name one of: {listed(models, room)}")
    check_whole(models[0], str(path))
    return models[0]


def _candidates(folder: Path) -> list[Candidate]:
    """The files of a folder, by name; none where it cannot be read."""
    try:
        return [Candidate(item.name, item.stat().st_size) for item in sorted(folder.iterdir()) if item.is_file()]
    except OSError:
        return []
