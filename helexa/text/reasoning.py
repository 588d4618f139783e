"""A model's reasoning: the markers it is set off by, and whether a prompt leaves the model inside, before or after it. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

# before: the reply may start with the opening marker; inside: the prompt ended with it; over: the prompt says there is none
Place = Literal["before", "inside", "over"]


class Markers(NamedTuple):
    open: str
    close: str


KNOWN = (Markers("<think>", "</think>"), Markers("[THINK]", "[/THINK]"), Markers("<seed:think>", "</seed:think>"))


def find_markers(template: str) -> Markers | None:
    """The markers that a chat template knows of; None for a model that does not reason."""
    return next((markers for markers in KNOWN if markers.close in template or markers.open in template), None)


def place_in(prompt: str, markers: Markers) -> Place:
    """Where the reply to a prompt starts."""
    end = prompt.rstrip()
    if end.endswith(markers.open):
        return "inside"
    return "over" if end.endswith(markers.close) else "before"
