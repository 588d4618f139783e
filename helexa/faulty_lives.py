"""Which lives of device workers have the fault that tests inject (helexa/formats/fault_spec.py), and which of their ranks."""

from __future__ import annotations

from helexa.formats import fault_spec


class FaultyLives:
    def __init__(self, text: str) -> None:
        """`text` as in $HELEXA_FAULT; empty: none has one."""
        self._text = text
        self._fault = fault_spec.parse(text) if text else None
        self._lives = 0

    def next_arguments(self) -> dict[int, list[str]]:
        """What the next worker is told to do wrong, by rank, for as many lives as were asked for."""
        self._lives += 1
        if self._fault is None or self._lives > self._fault.lives:
            return {}
        return {self._fault.rank: ["--fault", self._text]}
