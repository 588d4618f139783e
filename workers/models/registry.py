"""Which architecture a model names, and the function that loads it. A new model is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint
from helexa.formats.decoder_shape import fields_of, pooling_of
from workers.models import gemma3, llama, qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_next, smollm3
from workers.ops.protocol import Ops, RecurrentShape, Value
from workers.weights.sharding import WHOLE, Shard
from workers.weights.tensors import Tensors


class Model(Protocol):
    """A loaded model, or a rank's shard of one: its shape, and a forward over ops. Heads are those that are here."""

    @property
    def layers(self) -> int:
        """Those with KV."""
        ...

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def context(self) -> int:
        """Tokens it was trained for."""
        ...

    def forward(self, ops: Ops) -> Value:
        """Logits (R, V) of the step that `ops` is in."""
        ...


@runtime_checkable
class RecurrentModel(Protocol):
    """A model with layers whose past is a state of one size; `layers` counts the others, which have KV."""

    @property
    def recurrent(self) -> RecurrentShape: ...


@runtime_checkable
class PoolingModel(Protocol):
    """A model that makes embeddings where `pooling` is not empty: its forward ends in rows (R, `width`), not in logits."""

    @property
    def pooling(self) -> str: ...
    @property
    def width(self) -> int: ...


# By the name that a GGUF has in general.architecture, and a config.json in model_type.
ARCHITECTURES: dict[str, Callable[[Checkpoint, Tensors, Ops], Model]] = {
    "gemma2": gemma3.load,
    "gemma3": gemma3.load,
    "gemma3_text": gemma3.load,
    "llama": llama.load,
    "mistral": llama.load,
    "qwen2": qwen2.load,
    "qwen3": qwen3.load,
    "qwen35": qwen3_5.load,
    "qwen35moe": qwen3_5.load,
    "qwen3_5": qwen3_5.load,
    "qwen3_5_moe": qwen3_5.load,
    "qwen3_5_moe_text": qwen3_5.load,
    "qwen3_5_text": qwen3_5.load,
    "qwen3_moe": qwen3_moe.load,
    "qwen3_next": qwen3_next.load,
    "qwen3next": qwen3_next.load,
    "qwen3moe": qwen3_moe.load,
    "smollm3": smollm3.load,
}


def architecture_of(file: Checkpoint) -> str:
    return file.get("general.architecture" if file.format == "gguf" else "model_type", str)


def load_model(file: Checkpoint, ops: Ops, shard: Shard = WHOLE) -> Model:
    """The model, or what `shard` has of it. Raises ModelFileError for an architecture that is not served, and for a file that is not whole."""
    name = architecture_of(file)
    load = ARCHITECTURES.get(name)
    if load is None:
        raise ModelFileError(f"{file.path}: architecture `{name}` is not served; served: {', '.join(sorted(ARCHITECTURES))}")
    tensors = Tensors(file, shard)
    model = load(file, tensors, ops)
    if file.format == "gguf" and pooling_of(fields_of(file)) and not isinstance(model, PoolingModel):
        raise ModelFileError(f"{file.path}: embeddings of {name} models are not served; those of llama, qwen2 and qwen3 are")
    untaken = tensors.untaken()
    if untaken:
        raise ModelFileError(
            f"{file.path}: tensor {untaken[0]} (and {len(untaken) - 1} more) is not part of a {name} model that is served"
        )
    return model
