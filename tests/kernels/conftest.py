"""The native ops under test, on every instruction set this machine has, and single ops run as tiny forwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helexa.formats.ggml_types import BY_NAME, dequantise
from tools.bench_random_models import HALVES
from workers.inputs import StepInputs
from workers.ops.native import library
from workers.ops.native.build import BuildError, build
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops, RawTensor, Value
from workers.ops.reference import ReferenceOps

Float32 = NDArray[np.float32]
SEATS = 64


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _instruction_sets())
    if "implementation" in metafunc.fixturenames:
        metafunc.parametrize("implementation", ["reference", *_instruction_sets()])


def _instruction_sets() -> list[Any]:
    if library.why_missing():
        try:
            build()
        except BuildError as error:
            return [pytest.param("none", marks=pytest.mark.skip(reason=str(error)))]
    return library.instruction_sets()


class Bench:
    """Runs single ops of NativeOps, or of the reference by that name: rows come in as the embedding of a float32 table, so any
    value can be fed."""

    halves = HALVES

    def __init__(self) -> None:
        self._held: dict[tuple[str, int, bool], Any] = {}

    def ops(self, isa: str, threads: int = 2, direct: bool = False) -> Any:
        key = (isa, threads, direct)
        if key not in self._held:
            self._held[key] = (
                ReferenceOps(threads) if isa == "reference" else NativeOps(threads, SEATS, SEATS, isa=isa, direct=direct)
            )
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
            data = self.random_blocks(kind, rows * columns // BY_NAME[kind].block, random)
        raw = self.raw(kind, kind, (rows, columns), data)
        return raw, dequantise(kind, raw.data, columns)

    @staticmethod
    def random_blocks(kind: str, count: int, random: np.random.Generator, *halves: float) -> NDArray[np.uint8]:
        """`count` blocks of random integers; their scales and minimums are `halves`, else random and tame."""
        blocks = random.integers(0, 256, (count, BY_NAME[kind].block_bytes), dtype=np.uint8)
        tame = 0.05 if BY_NAME[kind].block == 32 else 0.002
        for index, place in enumerate(HALVES[kind]):
            values = np.full(count, halves[index]) if halves else random.standard_normal(count) * tame
            blocks[:, place : place + 2] = values.astype(np.float16)[:, None].view(np.uint8)
        return blocks

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
