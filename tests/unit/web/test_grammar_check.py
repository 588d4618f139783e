"""The child that compiles grammars first: its answers, and what happens when it hangs, dies, or loses whoever asked."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from helexa.errors import RequestError
from helexa.text.grammar import Context, OutputFormat, compose
from helexa.web import grammar_check
from helexa.web.grammar_check import GrammarChecker

HANGS = (sys.executable, "-c", "import sys\nfor line in sys.stdin: pass")
DIES = (sys.executable, "-c", "")
ECHOES = (sys.executable, "-u", "-c", "import sys\nfor line in sys.stdin: print(line, end='')")


def of(kind: Any, value: Any) -> str:
    return compose(OutputFormat(kind, value, "f"), None, Context(None, "over", {}))


async def wrong(checker: GrammarChecker, grammar: str) -> str:
    try:
        await checker.check(grammar, "field")
    except RequestError as error:
        assert error.param == "field" and error.status == 400
        return error.message
    return ""


def test_good_and_bad_ones() -> None:
    """A sound grammar passes; a broken one names the field and the reason; both are remembered."""

    async def main() -> None:
        checker = GrammarChecker()
        try:
            assert await wrong(checker, "") == "" and checker._child is None
            assert await wrong(checker, of("json_object", None)) == ""
            assert "unicorn" in await wrong(checker, of("json_schema", {"type": "unicorn"}))
            child = checker._child
            assert child is not None
            child.kill()
            child.wait()
            assert "unicorn" in await wrong(checker, of("json_schema", {"type": "unicorn"}))
            assert await wrong(checker, of("choice", ["a"])) == "" and checker._child is not child
        finally:
            checker.close()

    asyncio.run(main())


def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told to make it simpler; the next one gets a new child."""
    monkeypatch.setattr(grammar_check, "CHECK_S", 0.2)

    async def main() -> None:
        checker = GrammarChecker(HANGS)
        assert "simpler" in await wrong(checker, "a") and checker._child is None
        assert "simpler" in await wrong(checker, "b")

    asyncio.run(main())


def test_a_child_that_dies() -> None:
    async def main() -> None:
        checker = GrammarChecker(DIES)
        assert "memory" in await wrong(checker, "a") and checker._child is None

    asyncio.run(main())


def test_who_leaves_takes_the_answer_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled check does not leave its answer to the next."""

    async def main() -> None:
        checker = GrammarChecker(HANGS)
        first = asyncio.create_task(checker.check("first", "field"))
        while checker._child is None:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        checker._command = ECHOES
        assert "second" in await wrong(checker, "second")
        checker.close()

    asyncio.run(main())


def test_a_long_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "QUEUE_S", 0.05)

    async def main() -> None:
        checker = GrammarChecker(HANGS)
        async with checker._free:
            with pytest.raises(RequestError) as caught:
                await checker.check("a", "field")
        assert caught.value.code == "queue_full"

    asyncio.run(main())


@pytest.mark.parametrize("regex", ["(a+)+b", "((a{1,1000}){1,1000}){1,1000}", "(.*a){200}(b|c){1,5000}", "\\p{L}{1,5000}" * 8])
def test_hostile_patterns(regex: str) -> None:
    """Each is answered, one way or the other, in time."""

    async def main() -> None:
        checker = GrammarChecker()
        try:
            await wrong(checker, of("regex", regex))
        finally:
            checker.close()

    asyncio.run(main())
