"""The model's own tokenizer. No network, no clock.

A byte that a byte-level vocabulary has no token for is left out of an encoding, as in the models' reference tokenizers (SmolLM2's
has none for six control characters).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from helexa.errors import RequestError
from helexa.formats import vocabulary as vocabularies
from helexa.formats.hf_vocabulary import TokenizerFiles, read_vocabulary
from helexa.formats.vocabulary import Vocabulary
from helexa.text import gguf_pipeline, json_pipeline


class Tokenizer:
    """Text to ids and ids to bytes. Immutable, so it may be used from several threads.

    `vocab` is the number of tokens; `bos_id` and `eos_id` are those the file names; `eos_ids` are all that end a reply
    (helexa.formats.end_tokens); `add_bos`, `add_eos`: a prompt starts with `bos_id`, ends with `eos_id`, which `encode` leaves to
    its caller, since a chat template writes them itself; `control_ids` are tokens that are never text.
    """

    def __init__(self, vocabulary: Vocabulary, plain: tokenizers.Tokenizer, special: tokenizers.Tokenizer) -> None:
        """`plain` takes control tokens for ordinary text, `special` for those tokens."""
        self.vocab = len(vocabulary)
        self.control_ids = vocabulary.control_ids
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.end_ids
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self._tokens = vocabulary.tokens
        self._controls = {vocabulary.tokens[id]: id for id in self.control_ids}
        self._bytes = vocabulary.token_bytes
        self._space_prefix = vocabulary.space_prefix
        self._plain = plain
        self._special = special

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], file: str = "the model file") -> Tokenizer:
        """`metadata` as GGUFFile reads it. ModelFileError where it is damaged or of a kind that is not served; names `file`."""
        vocabulary = vocabularies.from_gguf(metadata, file)
        return cls(vocabulary, *gguf_pipeline.pipelines(metadata, vocabulary, file))

    @classmethod
    def from_files(cls, files: TokenizerFiles) -> Tokenizer:
        """Of a Hugging Face folder. ModelFileError as above."""
        vocabulary = read_vocabulary(files)
        return cls(vocabulary, *json_pipeline.pipelines(files, vocabulary))

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

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole encoding, without the blank that encoding put before it; U+FFFD for what is no character."""
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._space_prefix else text

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
