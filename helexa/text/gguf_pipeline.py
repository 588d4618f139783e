"""The `tokenizers` pipelines of a GGUF's vocabulary: byte-level BPE by its merges, SentencePiece by its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, normalizers

from helexa.errors import ModelFileError
from helexa.formats.token_bytes import BLANK, BYTE, NORMAL, UNKNOWN, USER_DEFINED
from helexa.formats.vocabulary import Vocabulary, texts
from helexa.text.pre_tokenizers import SCHEMES, SERVED

MAX_MERGES = 4_000_000
MAX_PIECE = 512  # characters of a SentencePiece token that others are joined to


def pipelines(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, file: str
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """(where control tokens are ordinary text, where they are those tokens). ModelFileError where the file is damaged."""
    if vocabulary.spelling == "letters":
        return _letters(metadata, vocabulary, file)
    return _spaces(metadata, vocabulary, file)


def _letters(metadata: Mapping[str, Any], vocabulary: Vocabulary, file: str) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    pre = metadata.get("tokenizer.ggml.pre")
    scheme = SCHEMES.get(pre) if isinstance(pre, str) else None
    if scheme is None:
        raise ModelFileError(f"{file}: tokenizer.ggml.pre is {pre!r:.40}, which is not served; served: {', '.join(SERVED)}")
    ids = _ids(vocabulary.tokens, file)
    pairs = _pairs(texts(metadata, "tokenizer.ggml.merges", file), ids, file)
    model = models.BPE(vocab=ids, merges=pairs, ignore_merges=scheme.whole_words_first)

    def pipeline(whole: list[str]) -> tokenizers.Tokenizer:
        made = tokenizers.Tokenizer(model)
        made.pre_tokenizer = scheme.cut()
        if scheme.compose:
            made.normalizer = normalizers.NFC()
        return _with_whole(made, whole)

    return _both(pipeline, vocabulary, vocabulary.tokens)


def _spaces(metadata: Mapping[str, Any], vocabulary: Vocabulary, file: str) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """SentencePiece's BPE: of all neighbours, those whose joined piece scores highest are joined first.

    Blanks are kept as blanks, here and in the vocabulary, so that tokens are found in a text as they are written.
    """
    tokens = [token.replace(BLANK, " ") for token in vocabulary.tokens]
    ids = _ids(tokens, file)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", _first(vocabulary.kinds, UNKNOWN))
    named = tokens[unknown] if type(unknown) is int and 0 <= unknown < len(tokens) else None
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.shape != (len(tokens),) or not np.isfinite(scores).all():
        raise ModelFileError(f"{file}: tokenizer.ggml.scores is missing, or not a number for each token; the file is damaged")
    pairs = joins(tokens, vocabulary.kinds, scores.tolist(), file)
    model = models.BPE(
        vocab=ids, merges=pairs, unk_token=named, fuse_unk=True, byte_fallback=BYTE in vocabulary.kinds, ignore_merges=False
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(BLANK, " ")]
    if vocabulary.space_prefix:
        steps.append(normalizers.Prepend(" "))

    def pipeline(whole: list[str]) -> tokenizers.Tokenizer:
        made = tokenizers.Tokenizer(model)
        made.normalizer = normalizers.Sequence(steps)
        return _with_whole(made, whole)

    return _both(pipeline, vocabulary, tokens)


def joins(tokens: list[str], kinds: list[int], scores: list[float], file: str) -> list[tuple[str, str]]:
    """Every pair of pieces that make up a third, best first; pairs of one piece rise with their left part's length."""
    parts = {token for token, kind in zip(tokens, kinds, strict=True) if kind in (NORMAL, USER_DEFINED)}
    ranked = sorted(
        ((-score, token) for token, kind, score in zip(tokens, kinds, scores, strict=True) if kind == NORMAL and len(token) > 1)
    )
    pairs: list[tuple[str, str]] = []
    for _, token in ranked:
        if len(token) > MAX_PIECE:
            raise ModelFileError(
                f"{file}: a token has {len(token)} characters, at most {MAX_PIECE} are read; the file is damaged"
            )
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs.extend(pair for pair in halves if pair[0] in parts and pair[1] in parts)
        if len(pairs) > MAX_MERGES:
            raise ModelFileError(f"{file}: its tokens can be joined in more than {MAX_MERGES} ways; the file is damaged")
    return pairs


def _both(
    pipeline: Callable[[list[str]], tokenizers.Tokenizer], vocabulary: Vocabulary, spelled: list[str]
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    defined = [token for token, kind in zip(spelled, vocabulary.kinds, strict=True) if kind == USER_DEFINED and token]
    control = [spelled[id] for id in sorted(vocabulary.control_ids) if spelled[id]]
    return pipeline(defined), pipeline(defined + control)


def _with_whole(pipeline: tokenizers.Tokenizer, whole: list[str]) -> tokenizers.Tokenizer:
    """`whole` are found in a text before it is cut, leftmost and longest first."""
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in whole])
    return pipeline


def _ids(tokens: list[str], file: str) -> dict[str, int]:
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for id, token in enumerate(tokens) if ids[token] != id)
        raise ModelFileError(f"{file}: tokenizer.ggml.tokens: {twice!r:.80} appears twice; the file is damaged")
    return ids


def _pairs(merges: list[str], ids: dict[str, int], file: str) -> list[tuple[str, str]]:
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not left or not right or left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(
                f"{file}: tokenizer.ggml.merges: {merge!r:.80} joins no two tokens to a third; the file is damaged"
            )
        pairs.append((left, right))
    return pairs


def _first(kinds: list[int], kind: int) -> int | None:
    return kinds.index(kind) if kind in kinds else None
