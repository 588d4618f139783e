"""The vocabulary of a Hugging Face folder: tokenizer.json and what tokenizer_config.json, generation_config.json and config.json
say beside it. Pure but for reading.

Which tokens a prompt starts and ends with is what tokenizer_config.json says, else what the post-processor of tokenizer.json adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helexa.errors import ModelFileError
from helexa.formats.end_tokens import END_SPELLINGS
from helexa.formats.json_file import Object, parse_object, read_object_if_any, read_text
from helexa.formats.token_bytes import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, byte_of_token
from helexa.formats.vocabulary import Spelling, Vocabulary

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG, CONFIG = "generation_config.json", "config.json"
MAX_TOKENIZER_BYTES = 128 * 1024 * 1024
MAX_TOKENS = 4 * 1024 * 1024


@dataclass(frozen=True)
class TokenizerFiles:
    """`text` is that of tokenizer.json; the others are empty where there is no such file."""

    folder: Path
    text: str
    tokenizer: Object
    config: Object
    generation: Object
    model: Object

    @property
    def path(self) -> Path:
        return self.folder / TOKENIZER


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """ModelFileError where tokenizer.json is missing, or one of them is damaged."""
    path = folder / TOKENIZER
    if not path.exists():
        other = next((name for name in ("tokenizer.model", "vocab.json", "spiece.model") if (folder / name).exists()), None)
        held = f" ({other} is there, which is not read)" if other else ""
        raise ModelFileError(f"{path}: missing{held}; a folder of safetensors needs its {TOKENIZER}")
    text = read_text(path, MAX_TOKENIZER_BYTES)
    others = (read_object_if_any(folder / name) for name in (TOKENIZER_CONFIG, GENERATION_CONFIG, CONFIG))
    return TokenizerFiles(folder, text, parse_object(text, path), *others)


def read_vocabulary(files: TokenizerFiles) -> Vocabulary:
    """ModelFileError where the files are damaged, or of a kind that is not served."""
    model = _table(files.tokenizer, "model", files.path)
    if model.get("type", "BPE") != "BPE":
        raise ModelFileError(f"{files.path}: the model's type is {model.get('type')!r:.40}, which is not served; served: BPE")
    added = _added(files)
    ids = _ids(model, added, files.path)
    spelling = _spelling(files, bool(model.get("byte_fallback")))
    tokens, kinds = _tokens(ids, added, model, spelling)
    bos, eos = (_named(files, name, ids, len(tokens)) for name in ("bos", "eos"))
    before, after = _around(files)
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        spelling=spelling,
        bos_id=bos,
        eos_id=eos,
        end_ids=_end_ids(files, eos, tokens, kinds),
        add_bos=_adds(files, "bos", before, bos, tokens),
        add_eos=_adds(files, "eos", after, eos, tokens),
        space_prefix=_space_prefix(files),
    )


def _table(holder: Mapping[str, Any], key: str, path: Path) -> Object:
    value = holder.get(key)
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: `{key}` is missing or is not an object; the file is damaged")
    return value


def _added(files: TokenizerFiles) -> list[tuple[str, int, bool]]:
    """(spelling, id, whether it is a special token) of each added token."""
    value = files.tokenizer.get("added_tokens", [])
    tokens = []
    for item in value if isinstance(value, list) else [None]:
        if not isinstance(item, dict) or not isinstance(item.get("content"), str) or not _is_id(item.get("id")):
            raise ModelFileError(f"{files.path}: added_tokens: {item!r:.80} is no token; the file is damaged")
        tokens.append((item["content"], item["id"], item.get("special") is True))
    return tokens


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_TOKENS


def _ids(model: Object, added: list[tuple[str, int, bool]], path: Path) -> dict[str, int]:
    vocab = _table(model, "vocab", path)
    ids: dict[str, int] = {}
    for token, id in vocab.items():
        if not _is_id(id):
            raise ModelFileError(f"{path}: vocab: {token!r:.80} has the id {id!r:.40}; the file is damaged")
        ids[token] = id
    for token, id, _ in added:
        if ids.setdefault(token, id) != id:
            raise ModelFileError(f"{path}: {token!r:.80} has the ids {ids[token]} and {id}; the file is damaged")
    if len(set(ids.values())) != len(ids):
        raise ModelFileError(f"{path}: two tokens have one id; the file is damaged")
    return ids


def _spelling(files: TokenizerFiles, byte_fallback: bool) -> Spelling:
    steps = [*_steps(files.tokenizer.get("pre_tokenizer")), *_steps(files.tokenizer.get("decoder"))]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "letters"
    if byte_fallback or "Metaspace" in kinds:
        return "spaces"
    raise ModelFileError(
        f"{files.path}: neither byte-level (ByteLevel) nor SentencePiece's (byte_fallback); other tokenizers are not served"
    )


def _steps(value: object) -> Iterator[Object]:
    """A normaliser, pre-tokenizer, post-processor or decoder, and those that it is a sequence of."""
    waiting = [value]
    while waiting:
        step = waiting.pop(0)
        if isinstance(step, dict):
            yield step
            for key in ("normalizers", "pretokenizers", "processors", "decoders"):
                if isinstance(step.get(key), list):
                    waiting += step[key]


def _tokens(
    ids: dict[str, int], added: list[tuple[str, int, bool]], model: Object, spelling: Spelling
) -> tuple[list[str], list[int]]:
    count = max(ids.values(), default=-1) + 1
    tokens, kinds = [""] * count, [UNUSED] * count
    for token, id in ids.items():
        tokens[id], kinds[id] = token, NORMAL
        if spelling == "spaces" and byte_of_token(token) is not None:
            kinds[id] = BYTE
    unknown = model.get("unk_token")
    if spelling == "spaces" and isinstance(unknown, str) and unknown in ids:
        kinds[ids[unknown]] = UNKNOWN
    for _, id, special in added:
        kinds[id] = CONTROL if special else USER_DEFINED
    return tokens, kinds


def _named(files: TokenizerFiles, name: str, ids: dict[str, int], count: int) -> int | None:
    """The bos or eos token: by its spelling in tokenizer_config.json, else by its id in config.json."""
    spelled = files.config.get(f"{name}_token")
    if isinstance(spelled, dict):
        spelled = spelled.get("content")
    if isinstance(spelled, str):
        if spelled not in ids:
            raise ModelFileError(
                f"{files.folder / TOKENIZER_CONFIG}: {name}_token {spelled!r:.80} is no token of {files.path.name}"
            )
        return ids[spelled]
    given = files.model.get(f"{name}_token_id")
    first = given[0] if isinstance(given, list) and given else given
    return first if type(first) is int and 0 <= first < count else None


def _end_ids(files: TokenizerFiles, eos: int | None, tokens: list[str], kinds: list[int]) -> list[int]:
    ends = set() if eos is None else {eos}
    for config in (files.generation, files.model):
        given = config.get("eos_token_id")
        ends |= {id for id in (given if isinstance(given, list) else [given]) if type(id) is int}
    spelled = set(END_SPELLINGS)
    ends |= {id for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == CONTROL and token in spelled}
    return sorted(id for id in ends if 0 <= id < len(tokens))


def _around(files: TokenizerFiles) -> tuple[list[str], list[str]]:
    """The tokens that the post-processor puts before and after a text."""
    for step in _steps(files.tokenizer.get("post_processor")):
        if step.get("type") == "TemplateProcessing" and isinstance(step.get("single"), list):
            sides: tuple[list[str], list[str]] = ([], [])
            after = False
            for piece in step["single"]:
                if isinstance(piece, dict) and "Sequence" in piece:
                    after = True
                elif isinstance(piece, dict) and isinstance(piece.get("SpecialToken"), dict):
                    sides[after].append(str(piece["SpecialToken"].get("id")))
            return sides
    return [], []


def _adds(files: TokenizerFiles, name: str, around: list[str], id: int | None, tokens: list[str]) -> bool:
    told = files.config.get(f"add_{name}_token")
    adds = told if isinstance(told, bool) else bool(around)
    place = "start" if name == "bos" else "end"
    if adds and id is None:
        raise ModelFileError(f"{files.folder / TOKENIZER_CONFIG}: prompts {place} with {name}, but {name}_token is missing")
    if not isinstance(told, bool) and adds and id is not None and around != [tokens[id]]:
        raise ModelFileError(
            f"{files.path}: prompts {place} with {' '.join(around)[:80]}, not with {name} alone; that is not served"
        )
    return adds


def _space_prefix(files: TokenizerFiles) -> bool:
    """Whether a blank is put before a text: by a normaliser, or by a pre-tokenizer."""
    steps = [*_steps(files.tokenizer.get("normalizer")), *_steps(files.tokenizer.get("pre_tokenizer"))]
    for step in steps:
        kind = step.get("type")
        if kind == "Prepend" or (kind == "ByteLevel" and step.get("add_prefix_space") is True):
            return True
        if kind == "Metaspace":
            return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False
    return False
