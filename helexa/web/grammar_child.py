"""Checks grammars in a process that may be killed: `python -P -m helexa.web.grammar_child PARENT_PID`.

It reads a JSON string a line, a grammar, and writes a JSON string a line: what is wrong with it, empty for nothing. Each is
compiled over the 256 bytes as a vocabulary, and asked for its first tokens. It ends with its input, and with its parent.
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from helexa.formats.grammar_limits import LIMITS
from helexa.processes import die_with_parent

MEMORY = 2 * 2**30  # bytes of address space


class _Bytes:
    """A vocabulary of the 256 bytes, and an end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def what_is_wrong(grammar: str, tokenizer: LLTokenizer) -> str:
    """One line; empty for a grammar that compiles within the limits."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS, verbose_errors=False))
    if not matcher.is_error():
        matcher.compute_bitmask()
    return " ".join(matcher.get_error().split())[:400] if matcher.is_error() else ""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's reaches every process: the parent says when to end
    die_with_parent(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=2**16, eos_token=256)
    for line in sys.stdin:
        try:
            answer = what_is_wrong(json.loads(line), tokenizer)
        except Exception as error:  # a foreign compiler: whatever it raises is the grammar's fault
            answer = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
