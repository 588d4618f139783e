"""A step's logits, which stay on the device: only rows that are asked for come to the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import torch

from workers.ops.protocol import Float32


class DeviceLogits:
    """`HeldLogits` of workers/ops/protocol.py. `values` (R, V) is on the device and `host` (R, V) has room for its rows; both are the
    next run's again. `fetched` counts the rows that came to the host."""

    def __init__(self, values: torch.Tensor, host: Float32) -> None:
        self._values, self._host = values, host
        self._at_host: set[int] = set()
        self._rows = list(range(len(values)))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), int(self._values.shape[1])

    @property
    def fetched(self) -> int:
        return len(self._at_host)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Float32]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, rows: int) -> Float32: ...
    @overload
    def __getitem__(self, rows: slice | list[int]) -> DeviceLogits: ...
    def __getitem__(self, rows: int | slice | list[int]) -> Float32 | DeviceLogits:
        if isinstance(rows, int | np.integer):
            row = self._rows[rows]
            self._fetch([row])
            held: Float32 = self._host[row]
            return held
        part = DeviceLogits(self._values, self._host)
        part._at_host = self._at_host
        part._rows = self._rows[rows] if isinstance(rows, slice) else [self._rows[row] for row in rows]
        return part

    def __setitem__(self, row: int, value: float) -> None:
        self[row][:] = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """All rows, on the host: a copy where they are not all of the step's."""
        self._fetch(self._rows)
        whole = self._rows == list(range(len(self._host)))
        return np.array(self._host if whole else self._host[self._rows], dtype, copy=copy)

    def _fetch(self, rows: list[int]) -> None:
        missing = [row for row in rows if row not in self._at_host]
        if len(missing) == len(self._values):
            torch.from_numpy(self._host).copy_(self._values)
        else:
            for row in missing:
                torch.from_numpy(self._host[row]).copy_(self._values[row])
        self._at_host.update(missing)

    def on_device(self) -> torch.Tensor:
        """The rows (R, V), those that were at the host as they were left there."""
        for row in self._rows:
            if row in self._at_host:
                self._values[row].copy_(torch.from_numpy(self._host[row]))
        first = self._rows[0] if self._rows else 0
        if self._rows == list(range(first, first + len(self._rows))):
            return self._values[first : first + len(self._rows)]
        return self._values[torch.tensor(self._rows, device=self._values.device)]
