"""What a configuration key is, the types that it may have, whether a value fits one, and what it is called. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal

Reload = Literal["live", "restart"]


def key(
    default: Any, doc: str, *, unit: str = "", reload: Reload = "restart", least: float | None = None, most: float | None = None
) -> Any:
    """A configuration key. Mutable defaults are copied for each tree."""
    metadata = {"doc": doc, "unit": unit, "reload": reload, "least": least, "most": most}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a key is annotated with."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arm) for arm in args)
    if origin is Literal:
        return value in args and not isinstance(value, bool)
    if origin is list:
        return isinstance(value, list) and all(fits(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def nearest(value: Any, hint: Any) -> str:
    """The word that was meant, where a type is a choice of words and one of them is close; else empty."""
    words = [arm for arm in typing.get_args(hint) if isinstance(arm, str)] if typing.get_origin(hint) is Literal else []
    return next(iter(difflib.get_close_matches(value.lower(), words, n=1)), "") if isinstance(value, str) else ""


def type_name(hint: Any) -> str:
    """The type, for people."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(arm) for arm in args)
    if origin is Literal:
        return " or ".join(f'"{arm}"' for arm in args)
    if origin is list:
        return f"a list of {type_name(args[0])}"
    if origin is dict:
        return f"a table of {type_name(args[1])}"
    if dataclasses.is_dataclass(hint):
        return "a section"
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}.get(hint, str(hint))
