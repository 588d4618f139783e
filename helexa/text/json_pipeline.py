"""The `tokenizers` pipelines of a tokenizer.json: the library reads its own format."""

from __future__ import annotations

import tokenizers

from helexa.errors import ModelFileError
from helexa.formats.hf_vocabulary import TokenizerFiles
from helexa.formats.vocabulary import Vocabulary


def pipelines(files: TokenizerFiles, vocabulary: Vocabulary) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """(where control tokens are ordinary text, where they are those tokens). ModelFileError where the file is damaged."""
    plain, special = _read(files), _read(files)
    plain.encode_special_tokens = True
    for id, token in enumerate(vocabulary.tokens):
        if token and special.token_to_id(token) != id:
            raise ModelFileError(f"{files.path}: {token!r:.80} has the id {id}, which does not follow the others; it is damaged")
    return plain, special


def _read(files: TokenizerFiles) -> tokenizers.Tokenizer:
    try:
        made = tokenizers.Tokenizer.from_str(files.text)
        made.no_truncation()
        made.no_padding()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics on some damage, and a panic is no Exception
        reason = " ".join(str(error).split())[:200]
        raise ModelFileError(f"{files.path}: cannot be read ({reason}); fetch it again") from None
    return made
