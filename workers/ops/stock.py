"""Ops that break the law of workers/ops/protocol.py on purpose, so that `helexa verify --self-test` can show that it notices.

Everything is the reference's but the linear, which is what any library does: one product of all rows of the step. Its sums are
ordered by the product's shape, so a row's bits change with the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.ops.protocol import Float32
from workers.ops.reference import DenseMatrix, ReferenceOps


@dataclass
class StockOps(ReferenceOps):
    """The reference with stock linears. Never for serving."""

    remedy: str = "these ops are not exact; they are for `helexa verify --self-test` only"
    kind: str = "stock"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name = f"stock linears on the {self.name}"

    def product(self, rows: Float32, dense: DenseMatrix) -> Float32:
        """N O: rows @ weight.T, however the BLAS at hand sums it."""
        return rows @ dense.weight.T
