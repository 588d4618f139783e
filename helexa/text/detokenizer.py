"""Token ids to text, a token at a time, never splitting a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """One choice's output. The pieces put together are `bytes.decode(errors="replace")` of all the tokens' bytes.

    A token may end inside a character: its bytes wait for the rest. Bytes that can no longer become one are U+FFFD at once.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._token_bytes(id))

    def flush(self) -> str:
        """What is held back, when no more tokens come."""
        return self._decoder.decode(b"", final=True)
