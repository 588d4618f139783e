"""Which architecture a model file names, and the class that runs it. A new model is a file and a line here."""

from __future__ import annotations

from typing import Protocol

from helexa.errors import ModelFileError
from helexa.formats.gguf import GGUFFile
from workers.models.llama import Llama
from workers.ops.protocol import Ops, Value
from workers.weights.tensors import Tensors


class Model(Protocol):
    """A loaded model: its shape, and a forward over ops."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int  # tokens it was trained for

    def forward(self, ops: Ops) -> Value:
        """Logits (R, V) of the step that `ops` is in."""
        ...


ARCHITECTURES: dict[str, type[Llama]] = {"llama": Llama}


def load_model(file: GGUFFile, ops: Ops) -> Model:
    """Raises ModelFileError for an architecture that is not served, and for a file that is not whole."""
    name = file.get("general.architecture", str)
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ModelFileError(f"{file.path}: architecture `{name}` is not served; served: {', '.join(sorted(ARCHITECTURES))}")
    tensors = Tensors(file)
    model = architecture.load(file, tensors, ops)
    untaken = tensors.untaken()
    if untaken:
        raise ModelFileError(
            f"{file.path}: tensor {untaken[0]} (and {len(untaken) - 1} more) is not part of a {name} model that is served"
        )
    return model
