"""From a wire request to the engine's: defaults, seeds, and what can never fit."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from byte_text import ByteTokenizer, PlainTemplate
from fake_scheduler import model_info

from helexa.config_tables import Sampling
from helexa.errors import RequestError
from helexa.web.model_text import ModelText
from helexa.web.prepare import SEED_MASK, choice_seed, prepare, request_seed
from helexa.web.request import ChatPrompt, GenerationRequest, Options, Prompt, Shape, TextPrompt, TokenPrompt, WireRequest

TEXT = ModelText(ByteTokenizer(), PlainTemplate())


def prepared(prompt: Prompt, sampling: Sampling | None = None, echo: bool = False, **options: Any) -> GenerationRequest:
    wire = WireRequest("m", [prompt], Options(**options), Shape(echo=echo))
    return prepare(wire, model_info(context=100), TEXT, sampling or Sampling())[0]


def refusal(prompt: Prompt, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        prepared(prompt, **options)
    return caught.value


def test_defaults() -> None:
    """max_tokens is what the prompt leaves of the context; the temperature is the configuration's."""
    request = prepared(TextPrompt("hello"), Sampling(temperature=0.3))
    assert request.prompt_ids == list(b"hello") and request.params.max_tokens == 95 and request.params.temperature == 0.3
    wide = prepare(WireRequest("m", [TextPrompt("a")], Options(), Shape()), model_info(context=100_000), TEXT, Sampling())
    assert wide[0].params.max_tokens == 8192


def test_what_cannot_fit() -> None:
    """The prompt alone, or with its max_tokens, is over the context: refused, never cut. The field is named."""
    assert refusal(TextPrompt("a" * 100)).code == "context_length_exceeded"
    assert refusal(TextPrompt("a" * 100)).param == "prompt"
    assert refusal(ChatPrompt([{"role": "user", "content": "a" * 100}])).param == "messages"
    assert refusal(TextPrompt("a" * 99), max_tokens=2).param == "max_tokens"
    assert prepared(TextPrompt("a" * 99), max_tokens=1).params.max_tokens == 1
    assert refusal(TextPrompt("a"), max_tokens=3, min_tokens=4).param == "min_tokens"


def test_a_hopeless_text_is_not_tokenised() -> None:
    """A text longer than the context could hold with the longest tokens is refused before the tokenizer sees it."""

    class Untouched(ByteTokenizer):
        def encode(self, text: str, special: bool = True) -> list[int]:
            raise AssertionError("tokenised")

    with pytest.raises(RequestError, match="bytes of text"):
        ModelText(Untouched(), None).encode("a" * 101, 100, bos=True)


def test_empty_prompts() -> None:
    assert refusal(TextPrompt("")).code == "empty_prompt"
    assert refusal(TokenPrompt([])).code == "empty_prompt"


def test_ids_are_held_against_the_vocabulary() -> None:
    """A prompt, a bias or a stop token past the logits' width is the client's error, naming the field."""
    assert refusal(TokenPrompt([260])).param == "prompt"
    assert refusal(TextPrompt("a"), logit_bias={260: 1.0}).param == "logit_bias"
    assert refusal(TextPrompt("a"), stop_token_ids=[260]).param == "stop_token_ids"
    assert prepared(TokenPrompt([259])).prompt_ids == [259]


def test_echo_of_token_ids_is_their_text() -> None:
    assert prepared(TokenPrompt([72, 105, 256]), echo=True).prompt_text == "Hi"


def test_bos_is_put_before_text_only() -> None:
    """A model that wants its begin token gets it on plain text, once; chat templates write their own."""

    class Beginning(ByteTokenizer):
        bos_id = 257
        add_bos = True

    text = ModelText(Beginning(), PlainTemplate())
    assert text.encode("a", 100, bos=True) == [257, 97]
    assert text.encode("a", 100, bos=False) == [97]


def test_a_model_without_a_template_serves_no_chat() -> None:
    with pytest.raises(RequestError) as caught:
        ModelText(ByteTokenizer(), None).chat_format()
    assert caught.value.code == "template_error"


def test_seeds() -> None:
    """Given: its low 63 bits. Else drawn, or made from the prompt. The first choice has the request's own, others a hash."""
    assert request_seed(5, [1], "random", 9) == 5
    assert request_seed(-1, [1], "random", 9) == SEED_MASK
    assert request_seed(None, [1], "random", 9) == 9
    by_prompt = request_seed(None, [1, 2], "prompt", 9)
    assert by_prompt == request_seed(None, [1, 2], "prompt", 10) != request_seed(None, [1, 3], "prompt", 9)
    assert choice_seed(7, 0) == 7
    expected = (
        int.from_bytes(hashlib.sha256((7).to_bytes(8, "little") + (2).to_bytes(4, "little")).digest()[:8], "little") % 2**63
    )
    assert choice_seed(7, 2) == expected
    assert prepared(TextPrompt("a"), seed=7, n=3).seeds == [7, choice_seed(7, 1), expected]


def test_prompts_of_one_request_do_not_depend_on_their_place() -> None:
    """A prompt in a batch has the seeds it would have alone with the same seed."""
    wire = WireRequest("m", [TextPrompt("a"), TextPrompt("b")], Options(seed=7, n=2), Shape())
    first, second = prepare(wire, model_info(), TEXT, Sampling())
    assert first.seeds == second.seeds == prepared(TextPrompt("b"), seed=7, n=2).seeds
