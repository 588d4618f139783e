"""Grammars in the device worker: which tokens may come next, as a pure function of a grammar and the ids so far.

A matcher is a cache of that function: one whose ids are not a beginning of the ids asked about is made anew and fed all of them,
as after a crash or a preemption. Compiling is bounded by fuel (some 50 ms at most) and runs in a thread of its own, without the
interpreter's lock, from when a sequence takes its seat; it is waited for when the first token is drawn, after the prompt.

Text that the grammar forces is spelled with the longest tokens that fit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from helexa.formats.checkpoint import Checkpoint
from helexa.formats.grammar_limits import LIMITS
from helexa.formats.model_vocabulary import vocabulary_of

MAX_COMPILED = 64  # grammars kept


class GrammarError(Exception):
    """A grammar that cannot be compiled, or whose limits a sequence ran into. Ends that sequence alone."""


@dataclass
class GrammarState:
    """What a seat keeps between steps. It can be dropped at any time."""

    compiled: Future[LLMatcher]
    matcher: LLMatcher | None = None
    ids: list[int] = field(default_factory=list)


class Grammars:
    """Of one model. `end_ids` end a reply, and are allowed where a grammar is satisfied."""

    def __init__(self, checkpoint: Checkpoint, end_ids: list[int], vocab: int) -> None:
        self._vocab = vocab
        self._end_ids = end_ids
        self._checkpoint = checkpoint  # its vocabulary is read with the first grammar
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._lock = threading.Lock()

    def start(self, text: str) -> GrammarState:
        """Compiles in the background, unless it was compiled lately."""
        with self._lock:
            compiled = self._compiled.pop(text, None)
            if compiled is None:
                compiled = self._thread.submit(self._compile, text)
            self._compiled[text] = compiled
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return GrammarState(compiled)

    def allowed(self, state: GrammarState, output: list[int]) -> NDArray[np.bool_]:
        """(V) which tokens may follow `output`. Raises GrammarError."""
        matcher = self._advanced(state, output)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        mask: NDArray[np.bool_] = np.unpackbits(bits, count=self._vocab, bitorder="little").astype(bool)
        _check(matcher)
        return mask

    def _advanced(self, state: GrammarState, output: list[int]) -> LLMatcher:
        if state.matcher is None or output[: len(state.ids)] != state.ids:
            state.matcher, state.ids = state.compiled.result().deep_copy(), []
        new = output[len(state.ids) :]
        if new:
            state.matcher.consume_tokens(new)
            state.ids = list(output)
        _check(state.matcher)
        return state.matcher

    def _compile(self, text: str) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._checkpoint, self._end_ids, self._vocab)
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LLParserLimits(**LIMITS, verbose_errors=False))
        _check(matcher)
        return matcher


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(f"the grammar: {' '.join(matcher.get_error().split())[:300]}")


class _Vocabulary:
    """The model's tokens in the form that llguidance's TokenizerWrapper takes."""

    def __init__(self, tokens: list[bytes], special: list[int], eos: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos
        self.bos_token_id = None
        never = set(special)
        self._ids = {token: id for id, token in reversed(list(enumerate(tokens))) if token and id not in never}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """The longest token first; a byte that no token has is left out."""
        ids, at = [], 0
        while at < len(text):
            for length in range(min(self._longest, len(text) - at), 0, -1):
                id = self._ids.get(text[at : at + length])
                if id is not None:
                    ids.append(id)
                    break
            at += length
        return ids


def _tokenizer(checkpoint: Checkpoint, end_ids: list[int], vocab: int) -> LLTokenizer:
    vocabulary = vocabulary_of(checkpoint)
    special = sorted(vocabulary.control_ids)
    tokens = list(vocabulary.token_bytes)
    for id in special:
        tokens[id] = vocabulary.tokens[id].encode()
    padded = [*tokens, *(b"" for _ in range(vocab - len(tokens)))]
    ends = end_ids or [0]
    return LLTokenizer(TokenizerWrapper(_Vocabulary(padded, special, ends[0])), n_vocab=vocab, eos_token=ends)
