"""The sampling that a model's makers recommend: generation_config.json, or `general.sampling.*` of a GGUF. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helexa.errors import ModelFileError


@dataclass(frozen=True)
class GenerationDefaults:
    """For requests that do not say; None where the model does not either."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
_RANGES = {  # (least, most, whether the least itself is allowed)
    "temperature": (0.0, 100.0, True),
    "top_k": (0, 2**31 - 1, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "repetition_penalty": (0.0, 100.0, False),
}


def from_generation_config(config: Mapping[str, Any], file: str) -> GenerationDefaults:
    """ModelFileError, naming `file`, for a value that is no setting."""
    return _checked({name: config.get(name) for name in _RANGES}, {name: name for name in _RANGES}, file)


def from_gguf(metadata: Mapping[str, Any], file: str) -> GenerationDefaults:
    return _checked({name: metadata.get(key) for name, key in _GGUF_KEYS.items()}, _GGUF_KEYS, file)


def _checked(values: dict[str, Any], keys: Mapping[str, str], file: str) -> GenerationDefaults:
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        least, most, included = _RANGES[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most or (value == least and not included) or (name == "top_k" and value % 1):
            raise ModelFileError(f"{file}: {keys[name]} is {value!r:.40}, which is no such setting; correct or remove it")
        checked[name] = int(value) if name == "top_k" else float(value)
    return GenerationDefaults(**checked)
