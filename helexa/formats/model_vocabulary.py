"""The vocabulary that comes with a model, whatever its format."""

from __future__ import annotations

from pathlib import Path

from helexa.formats import vocabulary
from helexa.formats.checkpoint import Checkpoint
from helexa.formats.end_tokens import checkpoint_end_ids
from helexa.formats.hf_vocabulary import TOKENIZER, read_tokenizer_files, read_vocabulary
from helexa.formats.vocabulary import Vocabulary


def vocabulary_of(checkpoint: Checkpoint) -> Vocabulary:
    """ModelFileError where it is missing, damaged, or of a kind that is not served."""
    if checkpoint.format == "gguf":
        return vocabulary.from_gguf(checkpoint.metadata, str(checkpoint.path))
    return read_vocabulary(read_tokenizer_files(folder_of(checkpoint)))


def end_ids_of(checkpoint: Checkpoint) -> list[int]:
    """The ids that end a reply, rising; of a checkpoint without a tokenizer, those that its configuration names."""
    if checkpoint.format != "gguf" and (folder_of(checkpoint) / TOKENIZER).exists():
        return vocabulary_of(checkpoint).end_ids
    return checkpoint_end_ids(checkpoint)


def folder_of(checkpoint: Checkpoint) -> Path:
    """Where the files lie that come with the weights."""
    return checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
