"""Where the weights of a mixture's experts lie, as tables on the device: made when a mixture is first used, kept from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from helexa.errors import ModelFileError
from kernels_cupy.checks import KernelArgumentError
from kernels_cupy.moe_linear.launcher import ExpertWeights
from workers.ops.cuda.streaming import StreamedWeight
from workers.ops.cuda.weights import DeviceMatrix
from workers.ops.protocol import Expert


class Mixtures:
    def __init__(self, torch_device: str) -> None:
        self._torch_device = torch_device
        self._held: dict[
            int, tuple[Sequence[Expert], ExpertWeights, ExpertWeights]
        ] = {}  # the experts' own id is the key, so they stay

    def of(self, experts: Sequence[Expert]) -> tuple[ExpertWeights, ExpertWeights]:
        """(gate and up, down) of the mixture's experts. Raises ModelFileError where these are not of one shape."""
        found = self._held.get(id(experts))
        if found is None:
            sides = [[cast(DeviceMatrix, getattr(expert, side)).parts for expert in experts] for side in ("gate_up", "down")]
            if any(isinstance(part, StreamedWeight) for side in sides for parts in side for part in parts):
                raise ModelFileError("a mixture's experts cannot be streamed, and do not fit the GPU's memory; use --device cpu")
            try:
                gate_up, down = (ExpertWeights.of(side, self._torch_device) for side in sides)
            except KernelArgumentError as error:
                raise ModelFileError(f"a mixture of experts has no GPU kernel: {error}; use --device cpu") from None
            found = self._held[id(experts)] = (experts, gate_up, down)
        return found[1], found[2]
