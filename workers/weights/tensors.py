"""Tensors of a GGUF file by name, checked against the shapes that the model's metadata promises."""

from __future__ import annotations

from helexa.errors import ModelFileError
from helexa.formats.gguf import GGUFFile
from workers.ops.protocol import RawTensor


class Tensors:
    """`take` hands out each tensor once or more; what nobody took is listed by `untaken`."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        """Raises ModelFileError where the tensor is missing or of another shape (rows, columns) or (length,)."""
        data = self.file.data(name)
        info = self.file.tensors[name]
        if info.shape != shape:
            raise ModelFileError(f"{self.file.path}: tensor {name} has shape {info.shape}; the metadata asks for {shape}")
        self._taken.add(name)
        return RawTensor(name, info.type, info.shape, data)

    def untaken(self) -> list[str]:
        return sorted(set(self.file.tensors) - self._taken)
