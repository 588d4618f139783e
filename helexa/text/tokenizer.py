"""The model's own tokenizer, built from a GGUF's vocabulary, merges and pre-tokenizer. No network, no files.

Only byte-level BPE is served. A byte that the vocabulary has no token for is left out of an encoding, as in the models' reference
tokenizers (SmolLM2's has none for six control characters).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from helexa.errors import ModelFileError, RequestError
from helexa.formats.end_tokens import end_token_ids
from helexa.formats.token_bytes import USER_DEFINED, control_ids, token_bytes, token_kinds

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class _Scheme(NamedTuple):
    """How a pre-tokenizer cuts text before the merges; `add_bos` where the file does not say."""

    cut: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words_first: bool = False  # a word that is itself a token needs no merges
    compose: bool = False  # text is brought to Unicode's composed form (NFC)
    add_bos: bool = False


def _gpt_2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()])


def _by_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_SCHEMES = {
    "gpt-2": _Scheme(_gpt_2),
    "smollm": _Scheme(_smollm),
    "llama-bpe": _Scheme(lambda: _by_pattern(_LLAMA_3), whole_words_first=True, add_bos=True),
    "qwen2": _Scheme(lambda: _by_pattern(_QWEN_2), compose=True),
}
SERVED = tuple(_SCHEMES)


class Tokenizer:
    """Text to ids and ids to bytes. Immutable, so it may be used from several threads.

    `vocab` is the number of tokens; `bos_id` and `eos_id` are those the file names; `eos_ids` are all that end a reply
    (helexa.formats.end_tokens); `add_bos`: a prompt starts with `bos_id`, which `encode` leaves to its caller, since a chat
    template writes it itself; `control_ids` are tokens that are never text.
    """

    def __init__(
        self, tokens: list[str], kinds: list[int], model: models.BPE, scheme: _Scheme, metadata: Mapping[str, Any]
    ) -> None:
        self.vocab = len(tokens)
        self.control_ids = frozenset(control_ids(kinds))
        self.bos_id: int | None = metadata.get("tokenizer.ggml.bos_token_id")
        self.eos_id: int | None = metadata.get("tokenizer.ggml.eos_token_id")
        self.eos_ids = end_token_ids(metadata)
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", scheme.add_bos))
        self._tokens = tokens
        self._controls = {tokens[id]: id for id in self.control_ids}
        self._bytes = token_bytes(tokens, kinds)
        defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED and token]
        control = [tokens[id] for id in sorted(self.control_ids) if tokens[id]]
        self._plain = _pipeline(model, scheme, defined)
        self._special = _pipeline(model, scheme, defined + control)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], file: str = "the model file") -> Tokenizer:
        """`metadata` as GGUFFile reads it. ModelFileError where it is damaged or of a kind that is not served; names `file`."""
        kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        if kind != "gpt2":
            raise ModelFileError(f"{file}: tokenizer.ggml.model is {kind!r}, which is not served; served: gpt2 (byte-level BPE)")
        scheme = _SCHEMES.get(pre) if isinstance(pre, str) else None
        if scheme is None:
            raise ModelFileError(f"{file}: tokenizer.ggml.pre is {pre!r}, which is not served; served: {', '.join(SERVED)}")
        tokens = _texts(metadata, "tokenizer.ggml.tokens", file)
        kinds = _kinds(metadata, len(tokens), file)
        _check_ids(metadata, len(tokens), scheme, file)
        model = _bpe(tokens, _texts(metadata, "tokenizer.ggml.merges", file), scheme, file)
        return cls(tokens, kinds, model, scheme, metadata)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of `text`; `special`: control tokens spelled in it are those tokens, else they are ordinary text.

        RequestError where `text` holds half of a surrogate pair, which is no character.
        """
        try:
            ids: list[int] = (self._special if special else self._plain).encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError(
                "invalid_value", "the text holds half of a surrogate pair, which is no character; remove it"
            ) from None
        return ids

    def token_bytes(self, id: int) -> bytes:
        """The token's bytes of text; b"" for a control token, and for an id past the vocabulary (padding of the logits)."""
        return self._bytes[id] if 0 <= id < self.vocab else b""

    def control_id(self, text: str) -> int | None:
        """The control token that is spelled so."""
        return self._controls.get(text)

    def token_text(self, id: int) -> str:
        """The token for people: a control token by its name, else its bytes as text, U+FFFD for what is not a whole character."""
        if id in self.control_ids:
            return self._tokens[id]
        return self.token_bytes(id).decode(errors="replace")


def _pipeline(model: models.BPE, scheme: _Scheme, whole: list[str]) -> tokenizers.Tokenizer:
    """A pipeline over the shared model; `whole` are found in the text before it is cut, leftmost and longest first."""
    pipeline = tokenizers.Tokenizer(model)
    pipeline.pre_tokenizer = scheme.cut()
    if scheme.compose:
        pipeline.normalizer = normalizers.NFC()
    pipeline.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in whole])
    return pipeline


def _bpe(tokens: list[str], merges: list[str], scheme: _Scheme, file: str) -> models.BPE:
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for id, token in enumerate(tokens) if ids[token] != id)
        raise ModelFileError(f"{file}: tokenizer.ggml.tokens: {twice!r:.80} appears twice; the file is damaged")
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not left or not right or left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(
                f"{file}: tokenizer.ggml.merges: {merge!r:.80} joins no two tokens to a third; the file is damaged"
            )
        pairs.append((left, right))
    return models.BPE(vocab=ids, merges=pairs, ignore_merges=scheme.whole_words_first)


def _texts(metadata: Mapping[str, Any], key: str, file: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ModelFileError(f"{file}: {key} is missing or is not an array of strings; the file is damaged")
    return value


def _kinds(metadata: Mapping[str, Any], count: int, file: str) -> list[int]:
    kinds = token_kinds(metadata, count)
    if len(kinds) != count:
        raise ModelFileError(
            f"{file}: tokenizer.ggml.token_type has {len(kinds)} entries for {count} tokens; the file is damaged"
        )
    return kinds


def _check_ids(metadata: Mapping[str, Any], count: int, scheme: _Scheme, file: str) -> None:
    for name in ("bos", "eos"):
        key = f"tokenizer.ggml.{name}_token_id"
        id = metadata.get(key)
        if id is not None and (type(id) is not int or not 0 <= id < count):
            raise ModelFileError(f"{file}: {key} is {id!r:.40}, which is not one of {count} tokens; the file is damaged")
    if metadata.get("tokenizer.ggml.add_bos_token", scheme.add_bos) and metadata.get("tokenizer.ggml.bos_token_id") is None:
        raise ModelFileError(
            f"{file}: prompts start with a bos token, but tokenizer.ggml.bos_token_id is missing; the file is damaged"
        )
