"""The native ops under test, on every instruction set this machine has, and single ops run as tiny forwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helexa.formats.ggml_types import dequantise, row_bytes
from workers.inputs import StepInputs
from workers.ops.native import library
from workers.ops.native.build import BuildError, build
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops, RawTensor, Value

Float32 = NDArray[np.float32]
SEATS = 64


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _instruction_sets())


def _instruction_sets() -> list[Any]:
    if library.why_missing():
        try:
            build()
        except BuildError as error:
            return [pytest.param("none", marks=pytest.mark.skip(reason=str(error)))]
    return library.instruction_sets()


class Bench:
    """Runs single ops of NativeOps: rows come in as the embedding of a float32 table, so any value can be fed."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int, bool], NativeOps] = {}

    def ops(self, isa: str, threads: int = 2, direct: bool = False) -> NativeOps:
        key = (isa, threads, direct)
        if key not in self._held:
            self._held[key] = NativeOps(threads, SEATS, SEATS, isa=isa, direct=direct)
        return self._held[key]

    @staticmethod
    def raw(name: str, kind: str, shape: tuple[int, ...], data: NDArray[Any]) -> RawTensor:
        return RawTensor(name, kind, shape, np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def floats(self, values: Float32) -> RawTensor:
        return self.raw("floats", "F32", values.shape, values.astype(np.float32))

    def random_weights(self, kind: str, rows: int, columns: int, seed: int = 0) -> tuple[RawTensor, Float32]:
        """A tensor of random bytes with tame scales, and its dequantised form."""
        random = np.random.default_rng(seed)
        if kind == "F32":
            data = random.standard_normal((rows, columns), dtype=np.float32).view(np.uint8)
        elif kind == "F16":
            data = random.standard_normal((rows, columns)).astype(np.float16).view(np.uint8)
        elif kind == "BF16":
            words = random.standard_normal((rows, columns), dtype=np.float32).view(np.uint32) >> 16
            data = words.astype(np.uint16).view(np.uint8)
        else:
            block = row_bytes(kind, 32)
            blocks = random.integers(0, 256, (rows * columns // 32, block), dtype=np.uint8)
            halves = 2 if kind == "Q4_1" else 1
            scales = random.standard_normal((len(blocks), halves)).astype(np.float16) * np.float16(0.05)
            blocks[:, : 2 * halves] = scales.view(np.uint8)
            data = blocks
        raw = self.raw(kind, kind, (rows, columns), data)
        return raw, dequantise(kind, raw.data, columns)

    @staticmethod
    def inputs(
        rows: int,
        starts: Sequence[tuple[int, int]] | None = None,
        logit_rows: Sequence[int] | None = None,
        width: int = 8,
        shift: int = 0,
    ) -> StepInputs:
        """Token ids 0 .. rows - 1. `starts`: (first position, new rows) a sequence; b owns blocks from shift + b * width."""
        starts = starts if starts is not None else [(0, rows)]
        positions = np.concatenate([np.arange(start, start + count) for start, count in starts]).astype(np.int32)
        counts = np.array([count for _, count in starts], np.int32)
        tables = shift + np.arange(len(starts) * width, dtype=np.int32).reshape(len(starts), width)
        return StepInputs(
            token_ids=np.arange(rows, dtype=np.int32),
            positions=positions,
            sequence_of_row=np.repeat(np.arange(len(starts), dtype=np.int32), counts),
            row_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            context_lens=np.array([start + count for start, count in starts], np.int32),
            block_tables=tables,
            logit_rows=np.array(range(rows) if logit_rows is None else logit_rows, np.int32),
        )

    def rows(
        self, ops: NativeOps, values: Float32, body: Callable[[Ops, Value], Value], inputs: StepInputs | None = None
    ) -> Float32:
        """`body` on the rows of `values`, a copy of its (N, width) result."""
        table = ops.matrix([self.floats(values)])

        def forward(step: Ops) -> Value:
            return step.gather_logit_rows(body(step, step.embed(table)))

        return ops.run(forward, inputs or self.inputs(len(values))).copy()

    def linear(self, ops: NativeOps, values: Float32, parts: Sequence[RawTensor]) -> Float32:
        weight = ops.matrix(parts)
        return self.rows(ops, values, lambda step, x: step.linear(x, weight))


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
