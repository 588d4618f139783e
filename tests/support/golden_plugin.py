"""Golden files: `golden("name.txt", text)` compares with tests/golden/name.txt; `pytest --update-golden` writes it instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    def check(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing: run pytest --update-golden, and read what it wrote"
        assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; if that is meant, run pytest --update-golden"

    return check
