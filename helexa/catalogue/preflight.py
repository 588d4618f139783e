"""Whether a model can be served, found out from its files before any device is touched. Pure but for reading them.

Each refusal has a kind, for programs, and a suggestion, for people. The checks go from what is cheapest to know to what needs the
others: the first that fails is told.

| kind | what does not hold |
|---|---|
| `format` | there is one model, of GGUF or safetensors |
| `file` | its files are whole, and every tensor is of a type that is served |
| `architecture` | its architecture is served |
| `tokenizer` | its tokenizer is there and is served |
| `quant` | its weights can be quantised to what is asked |
| `tensor_parallel` | it can be split over so many ranks |
| `context` | it was trained for so long a context |
| `memory` | weights and one sequence's cache fit |
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from helexa.catalogue.choice import Candidate, offered, size
from helexa.catalogue.memory_plan import least_bytes
from helexa.catalogue.model_shape import ModelShape, read_shape
from helexa.errors import HelexaError, ModelFileError
from helexa.formats.checkpoint import Checkpoint, open_checkpoint
from helexa.formats.ggml_types import SERVED as SERVED_TYPES
from helexa.formats.ggml_types import packed_bytes
from helexa.formats.model_vocabulary import vocabulary_of
from helexa.formats.quantise import QUANTS
from workers.weights.quantised import quantised_info

Kind = Literal["format", "file", "architecture", "tokenizer", "quant", "tensor_parallel", "context", "memory"]


class PreflightError(HelexaError):
    """A model that cannot be served as it is asked for. `suggestion` is what to do."""

    def __init__(self, kind: Kind, model_id: str, problem: str, suggestion: str) -> None:
        super().__init__(f"{model_id}: {problem}; {suggestion}")
        self.kind = kind
        self.model_id = model_id
        self.problem = problem
        self.suggestion = suggestion

    def document(self) -> dict[str, str]:
        return {"kind": self.kind, "model_id": self.model_id, "problem": self.problem, "suggestion": self.suggestion}


class Wishes(NamedTuple):
    """How the model is to be served. `context` 0: as it was trained; `float_weights`: ops that keep weights as float32."""

    context: int = 0
    quant: str = ""
    ranks: int = 1
    kv_blocks: int | Literal["auto"] = "auto"
    float_weights: bool = False


@dataclass(frozen=True)
class Passed:
    """What was found. `weight_bytes` and `needed_bytes` are of memory, `limit_bytes` is what there is."""

    model_id: str
    format: str
    architecture: str
    tokenizer: str
    parameters: int
    context: int
    weight_bytes: int
    needed_bytes: int
    limit_bytes: int

    def document(self) -> dict[str, str | int]:
        return asdict(self)


def check(model_id: str, path: Path, wishes: Wishes, limit_bytes: int, architectures: Collection[str]) -> Passed:
    """Raises PreflightError. `path` is a file or folder; `architectures` are those that are served."""
    _check_format(model_id, path)
    try:
        opened = open_checkpoint(path)
    except ModelFileError as error:
        raise _refusal("file", model_id, error) from None
    with closing(opened) as checkpoint:
        architecture = _architecture(model_id, checkpoint, architectures)
        _check_types(model_id, checkpoint)
        tokenizer = _tokenizer(model_id, checkpoint)
        _check_quant(model_id, checkpoint, wishes.quant)
        shape = _shape(model_id, checkpoint)
        _check_ranks(model_id, shape, wishes.ranks)
        context = _context(model_id, shape, wishes.context)
        weights = shape.float_bytes if wishes.float_weights else _weight_bytes(checkpoint, wishes.quant)
        parameters = shape.float_bytes // 4
    needed = least_bytes(weights, shape.bytes_per_block, context, wishes.kv_blocks, shape.state_bytes, wishes.ranks)
    if needed > limit_bytes:
        raise PreflightError(
            "memory",
            model_id,
            f"it takes at least {size(needed)} ({size(weights)} of weights, and the cache of one sequence of {context:,} tokens), "
            f"and {size(limit_bytes)} may be used",
            _memory_remedy(checkpoint, wishes),
        )
    return Passed(model_id, checkpoint.format, architecture, tokenizer, parameters, context, weights, needed, limit_bytes)


def _refusal(kind: Kind, model_id: str, error: ModelFileError, otherwise: str = "choose another model") -> PreflightError:
    """Of an error about a file, whose remedy follows its last semicolon."""
    problem, found, remedy = error.message.rpartition("; ")
    return PreflightError(kind, model_id, problem, remedy) if found else PreflightError(kind, model_id, remedy, otherwise)


def _check_format(model_id: str, path: Path) -> None:
    """A path that is to hold one model in one format."""
    if not path.exists():
        raise PreflightError("format", model_id, f"{path} is not there", "check the path, or fetch the model again")
    if not path.is_dir():
        if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"):
            raise PreflightError(
                "format", model_id, f"{path.name} is pickled, which can run code", "use a .safetensors or .gguf file"
            )
        return
    files = [Candidate(item.name, item.stat().st_size) for item in sorted(path.iterdir()) if item.is_file()]
    models = offered(files)
    names = ", ".join(model.path for model in models)
    if len({model.role for model in models}) > 1:
        raise PreflightError(
            "format", model_id, f"the folder mixes GGUF and safetensors ({names})", "name the one file that is meant"
        )
    if len(models) > 1:
        raise PreflightError(
            "format", model_id, f"the folder holds {len(models)} models ({names})", "name the one file that is meant"
        )
    if not models:
        pickled = any(file.name.endswith((".bin", ".pt", ".pth", ".ckpt")) for file in files)
        held = "only pickled weights, which can run code" if pickled else "no .gguf and no .safetensors file"
        raise PreflightError("format", model_id, f"the folder holds {held}", "choose a source that carries GGUF or safetensors")


def _architecture(model_id: str, file: Checkpoint, architectures: Collection[str]) -> str:
    try:
        name = file.get("general.architecture" if file.format == "gguf" else "model_type", str)
    except ModelFileError as error:
        raise _refusal("architecture", model_id, error, "choose a model that names its architecture") from None
    if name not in architectures:
        close = difflib.get_close_matches(name, architectures, n=1)
        hint = f"the nearest that is served is {close[0]}" if close else f"served are {', '.join(sorted(architectures))}"
        raise PreflightError(
            "architecture", model_id, f"architecture {name!r:.60} is not served", f"choose another model: {hint}"
        )
    return name


def _check_types(model_id: str, file: Checkpoint) -> None:
    odd = sorted({tensor.type for tensor in file.tensors.values()} - set(SERVED_TYPES))
    if odd:
        raise PreflightError(
            "file",
            model_id,
            f"it has tensors of type {', '.join(odd)}, which are not served",
            f"use one of {', '.join(SERVED_TYPES)}",
        )
    if not file.tensors:
        raise PreflightError("file", model_id, "it has no tensors: it is a vocabulary alone", "choose a whole model")


def _tokenizer(model_id: str, file: Checkpoint) -> str:
    """The tokenizer's kind, for people."""
    from helexa.text.pre_tokenizers import SERVED  # its library is loaded by those who need it

    try:
        vocabulary = vocabulary_of(file)
    except ModelFileError as error:
        raise _refusal("tokenizer", model_id, error, "choose a model with a tokenizer that is served") from None
    if file.format != "gguf":
        return "tokenizer.json"
    pre = file.metadata.get("tokenizer.ggml.pre")
    if vocabulary.spelling == "letters" and pre not in SERVED:
        raise PreflightError(
            "tokenizer", model_id, f"tokenizer.ggml.pre is {pre!r:.40}, which is not served", f"served are {', '.join(SERVED)}"
        )
    return f"byte-level BPE, {pre}" if vocabulary.spelling == "letters" else "SentencePiece"


def _check_quant(model_id: str, file: Checkpoint, quant: str) -> None:
    if not quant:
        return
    if quant not in QUANTS:
        close = difflib.get_close_matches(quant.lower(), QUANTS, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]}?" if close else f"possible are {', '.join(QUANTS)}"
        raise PreflightError("quant", model_id, f"weights cannot be quantised to {quant!r:.40}", hint)
    if not any(quantised_info(tensor, quant) for tensor in file.tensors.values()):
        raise PreflightError(
            "quant", model_id, "its weights are quantised already", "leave quant out, or choose a model with float weights"
        )


def _shape(model_id: str, file: Checkpoint) -> ModelShape:
    try:
        return read_shape(file)
    except ModelFileError as error:
        raise _refusal("file", model_id, error) from None


def _check_ranks(model_id: str, shape: ModelShape, ranks: int) -> None:
    if ranks > shape.most_ranks:
        heads = "KV heads" if shape.most_ranks == shape.kv_heads else "key heads of recurrent layers"
        raise PreflightError(
            "tensor_parallel",
            model_id,
            f"its {shape.most_ranks} {heads} cannot be split over {ranks} ranks",
            f"set devices.tensor_parallel (--tensor-parallel) to at most {shape.most_ranks}",
        )


def _context(model_id: str, shape: ModelShape, wanted: int) -> int:
    if wanted > shape.context:
        raise PreflightError(
            "context",
            model_id,
            f"it was trained for {shape.context:,} tokens, and model.context is {wanted:,}",
            f"set it to at most {shape.context}, or leave it out",
        )
    return wanted or shape.context


def _weight_bytes(file: Checkpoint, quant: str) -> int:
    made = (quantised_info(tensor, quant) if quant else None for tensor in file.tensors.values())
    types = ((other or tensor).type for tensor, other in zip(file.tensors.values(), made, strict=True))
    return sum(packed_bytes(type, math.prod(tensor.shape)) for type, tensor in zip(types, file.tensors.values(), strict=True))


def _memory_remedy(file: Checkpoint, wishes: Wishes) -> str:
    floats = any(quantised_info(tensor, "q4_0") for tensor in file.tensors.values()) and not wishes.quant
    other = 'set quant (such as "q4_0")' if floats else "choose a smaller model or quantisation"
    cache = "model.context" if wishes.kv_blocks == "auto" else "memory.kv_blocks"
    return f"raise memory.limit_mib, free memory, lower {cache}, or {other}"
