"""How a byte-level BPE cuts text before its merges, by the name that a GGUF gives it (`tokenizer.ggml.pre`).

The patterns are those that the models were trained with, as their own tokenizer files state them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS
_QWEN_35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _BLANKS
_DEEPSEEK_IDEOGRAPHS = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK_LLM = (r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", _DEEPSEEK_IDEOGRAPHS)  # noqa: RUF001
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_IDEOGRAPHS)


class Scheme(NamedTuple):
    """`whole_words_first`: a word that is itself a token needs no merges. `compose`: text is brought to its composed form (NFC)."""

    cut: Callable[[], PreTokenizer]
    whole_words_first: bool = False
    compose: bool = False


def _gpt_2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_alone() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()])


def _falcon() -> PreTokenizer:
    steps = [pre_tokenizers.Punctuation(behavior="contiguous"), _gpt_2(), pre_tokenizers.Digits(individual_digits=False)]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")])


def _by_patterns(*patterns: str, digits_alone: bool = False) -> Callable[[], PreTokenizer]:
    def made() -> PreTokenizer:
        steps: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        if digits_alone:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return made


_LLAMA_3_SCHEME = Scheme(_by_patterns(_LLAMA_3), whole_words_first=True)
_QWEN_2_SCHEME = Scheme(_by_patterns(_QWEN_2), compose=True)

SCHEMES = {
    "gpt-2": Scheme(_gpt_2),
    "smollm": Scheme(_digits_alone),
    "starcoder": Scheme(_digits_alone),
    "refact": Scheme(_digits_alone),
    "command-r": Scheme(_digits_alone, compose=True),
    "falcon": Scheme(_falcon),
    "llama-bpe": _LLAMA_3_SCHEME,
    "llama3": _LLAMA_3_SCHEME,
    "llama-v3": _LLAMA_3_SCHEME,
    "falcon3": _LLAMA_3_SCHEME,
    "pixtral": _LLAMA_3_SCHEME,
    "lfm2": _LLAMA_3_SCHEME,
    "qwen2": _QWEN_2_SCHEME,
    "deepseek-r1-qwen": _QWEN_2_SCHEME,
    "qwen35": Scheme(_by_patterns(_QWEN_35), compose=True),
    "deepseek-llm": Scheme(_by_patterns(*_DEEPSEEK_LLM, digits_alone=True)),
    "deepseek-coder": Scheme(_by_patterns(*_DEEPSEEK_CODER, digits_alone=True)),
}
SERVED = tuple(SCHEMES)
