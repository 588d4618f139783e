"""Grammars of clients are compiled in a child process first, under a time limit: one that does not end takes nobody with it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections import OrderedDict
from contextlib import suppress

from helexa.errors import RequestError

log = logging.getLogger("helexa.web.grammar")

CHECK_S = 3.0
QUEUE_S = 10.0
MOST_KNOWN = 256

Child = subprocess.Popen[bytes]


class GrammarChecker:
    """One child, started when it is first needed and again after it was killed; answers are remembered."""

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-P", "-m", "helexa.web.grammar_child")) -> None:
        self._command = command
        self._child: Child | None = None
        self._free = asyncio.Lock()
        self._known: OrderedDict[str, str] = OrderedDict()

    async def check(self, grammar: str, param: str) -> None:
        """Raises RequestError, naming `param`, for a grammar that does not compile within the limits."""
        if not grammar:
            return
        wrong = self._known.get(grammar)
        if wrong is None:
            wrong = await self._asked(grammar)
            self._known[grammar] = wrong
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        if wrong:
            raise RequestError("invalid_value", f"`{param}` cannot be served: {wrong}", param)

    def close(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    async def _asked(self, grammar: str) -> str:
        try:
            await asyncio.wait_for(self._free.acquire(), QUEUE_S)
        except TimeoutError:
            raise RequestError("queue_full", "too many grammars wait to be checked; try again later", retry_after=1) from None
        try:
            async with asyncio.timeout(CHECK_S):
                return await self._answer(grammar)
        except TimeoutError:
            self.close()
            return f"it takes more than {CHECK_S:g} s to compile; make it simpler"
        except (OSError, ValueError) as error:
            log.warning("the child that checks grammars ended (%s); the next one is started", error)
            self.close()
            return "it takes more memory than a grammar may; make it simpler"
        except BaseException:  # whoever asked is gone: the answer would be taken for the next one's
            self.close()
            raise
        finally:
            self._free.release()

    async def _answer(self, grammar: str) -> str:
        if self._child is None or self._child.poll() is not None:
            self.close()
            command = [*self._command, str(os.getpid())]  # from this thread: the child's life hangs on it
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return await asyncio.to_thread(_exchange, self._child, grammar)


def _exchange(child: Child, grammar: str) -> str:
    """Blocks until the child answers or is killed."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps(grammar).encode() + b"\n")
    child.stdin.flush()
    return str(json.loads(child.stdout.readline()))
