"""What `HELEXA_FAULT` may say, for tests of recovery: `KIND[:NAME=NUMBER,...]`. Pure.

docs/faults.md says what each kind does. `step` counts a worker's steps from 1, `token` is an id whose computation sets the fault off,
`lives` is how many workers, one after the other, have it; `rank` which of their ranks, 0 where it is not said. Without a token it is
the first step; a fault of a step happens in one life, one of a token in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from helexa.errors import ConfigError

KINDS = ("crash", "device", "memory", "hang", "row", "request")
ALWAYS = 2**31 - 1


@dataclass(frozen=True)
class FaultSpec:
    kind: str
    step: int | None
    token: int | None
    lives: int
    rank: int = 0


def parse(text: str) -> FaultSpec:
    """Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(f"HELEXA_FAULT={text}: no fault `{kind}`; known: {', '.join(KINDS)}")
    numbers: dict[str, int] = {}
    for item in rest.split(",") if rest else []:
        name, _, number = item.partition("=")
        if name not in ("step", "token", "lives", "rank") or not number.isdecimal() or name in numbers:
            raise ConfigError(f"HELEXA_FAULT={text}: `{item}` is not step=N, token=ID, lives=N or rank=N, each once")
        numbers[name] = int(number)
    token = numbers.get("token")
    step = numbers.get("step", 1 if token is None else None)
    if (token is not None and step is not None) or step == 0:
        raise ConfigError(f"HELEXA_FAULT={text}: give a step, counted from 1, or a token")
    if kind in ("row", "request") and numbers.get("rank"):
        raise ConfigError(f"HELEXA_FAULT={text}: a {kind} fails in rank 0, which alone draws; leave `rank` out")
    lives = numbers.get("lives", 1 if token is None else ALWAYS)
    return FaultSpec(kind, step, token, lives, numbers.get("rank", 0))
