"""Checks of single values: each takes what JSON gave, returns it in the engine's form, or raises ValueError. `says` completes
"must be ..." in an error and in docs/api.md."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

INT32_MAX = 2**31 - 1
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class Check(Protocol):
    @property
    def says(self) -> str: ...

    def __call__(self, value: Any) -> Any: ...


def _require(passes: bool) -> None:
    if not passes:
        raise ValueError


def is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT32_MAX


@dataclass(frozen=True)
class Bool:
    says: str = "true or false"

    def __call__(self, value: Any) -> bool:
        _require(isinstance(value, bool))
        return bool(value)


@dataclass(frozen=True)
class Integer:
    least: int
    most: int

    @property
    def says(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def __call__(self, value: Any) -> int:
        _require(isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most)
        return int(value)


@dataclass(frozen=True)
class Number:
    least: float
    most: float

    @property
    def says(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"

    def __call__(self, value: Any) -> float:
        _require(isinstance(value, (int, float)) and not isinstance(value, bool) and self.least <= value <= self.most)
        return float(value)


@dataclass(frozen=True)
class Text:
    most: int
    least: int = 0

    @property
    def says(self) -> str:
        return (
            f"a string of {self.least} to {self.most} characters" if self.least else f"a string of at most {self.most} characters"
        )

    def __call__(self, value: Any) -> str:
        _require(isinstance(value, str) and self.least <= len(value) <= self.most)
        return str(value)


@dataclass(frozen=True)
class OneOf:
    values: tuple[str, ...]

    @property
    def says(self) -> str:
        return " or ".join(f'"{value}"' for value in self.values)

    def __call__(self, value: Any) -> str:
        _require(isinstance(value, str) and value in self.values)
        return str(value)


@dataclass(frozen=True)
class StopStrings:
    """A string or an array of strings, to a list. A bare empty string means none."""

    most: int = 16
    length: int = 1024

    @property
    def says(self) -> str:
        return f"a string, or an array of at most {self.most} strings, of 1 to {self.length} characters each"

    def __call__(self, value: Any) -> list[str]:
        if value == "":
            return []
        strings = [value] if isinstance(value, str) else value
        _require(isinstance(strings, list) and len(strings) <= self.most)
        _require(all(isinstance(item, str) and 0 < len(item) <= self.length for item in strings))
        return list(strings)


@dataclass(frozen=True)
class TokenIds:
    most: int

    @property
    def says(self) -> str:
        return f"an array of at most {self.most} token ids"

    def __call__(self, value: Any) -> list[int]:
        _require(isinstance(value, list) and len(value) <= self.most and all(is_token_id(item) for item in value))
        return list(value)


@dataclass(frozen=True)
class LogitBias:
    """A JSON object from token id to bias, its keys in decimal, to dict[int, float]."""

    most: int = 1024

    @property
    def says(self) -> str:
        return f"an object of at most {self.most} token ids, each with a bias from -100 to 100"

    def __call__(self, value: Any) -> dict[int, float]:
        _require(isinstance(value, dict) and len(value) <= self.most)
        number = Number(-100, 100)
        biases = {int(name): number(bias) for name, bias in value.items() if _TOKEN_ID.fullmatch(name)}
        _require(len(biases) == len(value) and all(is_token_id(token) for token in biases))
        return biases


@dataclass(frozen=True)
class FilledArray:
    """An array whose members the endpoint's own parser checks."""

    of: str

    @property
    def says(self) -> str:
        return f"an array of at least one {self.of}"

    def __call__(self, value: Any) -> list[Any]:
        _require(isinstance(value, list) and len(value) > 0)
        return list(value)


@dataclass(frozen=True)
class Prompts:
    """Text or token ids, one prompt or several; the endpoint's parser takes them apart."""

    says: str = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"

    def __call__(self, value: Any) -> Any:
        _require(isinstance(value, (str, list)))
        return value


@dataclass(frozen=True)
class Object:
    says: str = "an object"

    def __call__(self, value: Any) -> dict[str, Any]:
        _require(isinstance(value, dict))
        return dict(value)


@dataclass(frozen=True)
class FlatObject:
    """An object from names to strings: OpenAI's `metadata`."""

    says: str = "an object of at most 16 strings"

    def __call__(self, value: Any) -> dict[str, Any]:
        _require(isinstance(value, dict) and len(value) <= 16 and all(isinstance(item, str) for item in value.values()))
        return dict(value)


@dataclass(frozen=True)
class Array:
    """An array whose members the endpoint's own parser checks; it may be empty."""

    most: int
    of: str

    @property
    def says(self) -> str:
        return f"an array of at most {self.most} {self.of}s"

    def __call__(self, value: Any) -> list[Any]:
        _require(isinstance(value, list) and len(value) <= self.most)
        return list(value)


@dataclass(frozen=True)
class Strings:
    most: int

    @property
    def says(self) -> str:
        return f"an array of at most {self.most} strings"

    def __call__(self, value: Any) -> list[str]:
        _require(isinstance(value, list) and len(value) <= self.most and all(isinstance(item, str) for item in value))
        return list(value)


@dataclass(frozen=True)
class Schema:
    says: str = "a JSON Schema: an object, or a string that holds one"

    def __call__(self, value: Any) -> dict[str, Any]:
        schema = json.loads(value) if isinstance(value, str) else value
        _require(isinstance(schema, dict))
        return dict(schema)


@dataclass(frozen=True)
class StringOrObject:
    says: str = "a string or an object"

    def __call__(self, value: Any) -> Any:
        _require(isinstance(value, (str, dict)))
        return value


@dataclass(frozen=True)
class TextOrArray:
    """The endpoint's own parser checks the members."""

    says: str = "a string or an array"

    def __call__(self, value: Any) -> Any:
        _require(isinstance(value, (str, list)))
        return value


@dataclass(frozen=True)
class OnlyFalse:
    says: str = "false"

    def __call__(self, value: Any) -> bool:
        _require(value is False)
        return False
