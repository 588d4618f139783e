"""A checkpoint whose linears are quantised as they are read: `quant` in the configuration.

Quantised are the float matrices: two dimensions or more, columns that are a whole number of blocks. The embedding stays as it is
(so a head that is tied to it does), and so do vectors, routers of experts, the vision part, and what is quantised already. For
`q4k`, a matrix whose columns are no multiple of 256 becomes Q5_0.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import Checkpoint, Format, TensorInfo
from helexa.formats.ggml_types import BY_NAME, row_bytes
from helexa.formats.quantise import QUANTS
from workers.ops.native.memory import drop_mapped_pages, want_mapped_pages
from workers.ops.native.quantising import quantise_rows
from workers.weights.quant_cache import SUFFIX, CacheReader, CacheWriter, cache_key, trim

UInt8 = NDArray[np.uint8]
FLOATS = frozenset({"F32", "F16", "BF16"})
CHUNK_WEIGHTS = 1 << 20  # that a thread quantises at a time
_KEPT = re.compile(r"embd|embed|gate_inp|mlp\.gate\.|shared_expert_gate|visual|vision|^v\.|^mm\.")


class QuantisedCheckpoint:
    """`source` with some tensors of another type. Nobody else reads `source` meanwhile.

    `report` is told (weights quantised, weights to quantise) as it goes. `cache_dir` None: nothing is kept; `keeps` False: neither,
    but what is there already is used. Whoever keeps makes whole tensors, also where rows are read.
    """

    def __init__(
        self,
        source: Checkpoint,
        quant: str,
        threads: int,
        report: Callable[[int, int], None],
        cache_dir: Path | None = None,
        cache_bytes: int = 0,
        keeps: bool = True,
    ) -> None:
        self._source = source
        self._pool = ThreadPoolExecutor(threads, "quantise")
        self._report = report
        self._made = {name: made for name, info in source.tensors.items() if (made := quantised_info(info, quant))}
        self._weights = sum(math.prod(info.shape) for info in self._made.values())
        self._done = 0
        self._cache_bytes = cache_bytes
        self._reader: CacheReader | None = None
        self._writer: CacheWriter | None = None
        self._tensors = {**source.tensors, **self._made}
        total = sum(info.nbytes for info in self._made.values())
        if cache_dir is not None and 0 < total <= cache_bytes:
            key = cache_key(source.files, quant)
            path = cache_dir / f"{key}{SUFFIX}"
            self._reader = CacheReader.open(path, key, self._made)
            if self._reader is None and keeps:
                self._writer = CacheWriter.create(path, key, total)

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def format(self) -> Format:
        return self._source.format

    @property
    def files(self) -> tuple[Path, ...]:
        return self._source.files

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._source.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    @property
    def from_cache(self) -> bool:
        """The blocks were found on disk."""
        return self._reader is not None and not self._reader.damaged

    def get(self, key: str, kind: type[Any], default: Any = ...) -> Any:
        """As Checkpoint.get."""
        return self._source.get(key, kind) if default is ... else self._source.get(key, kind, default)

    def data(self, name: str) -> UInt8:
        """The tensor's bytes: of the cache, else quantised now."""
        info = self._made.get(name)
        if info is None:
            return self._source.data(name)
        found = self._reader.data(name) if self._reader is not None else None
        if found is not None:
            return found
        data = self._quantised(info, 0, math.prod(info.shape[:-1]))
        if self._writer is not None:
            self._writer.add(name, info.type, data)
        return data

    def data_of_rows(self, name: str, first: int, end: int) -> UInt8:
        """The bytes of rows first .. end - 1; no others are quantised, unless they are kept."""
        info = self._tensors[name]
        if name in self._made and self._reader is None and self._writer is None:
            return self._quantised(info, first, end)
        size = row_bytes(info.type, info.shape[-1])
        return self.data(name)[first * size : end * size]

    def _quantised(self, info: TensorInfo, first_row: int, end_row: int) -> UInt8:
        source, type = self._source.data(info.name), self._source.tensors[info.name].type
        columns = info.shape[-1]
        from_row, to_row = row_bytes(type, columns), row_bytes(info.type, columns)
        source, rows = source[first_row * from_row : end_row * from_row], end_row - first_row
        together = max(1, CHUNK_WEIGHTS // columns)
        out = np.empty((rows, to_row), np.uint8)

        def chunk(first: int) -> None:
            raw = source[first * from_row : (first + together) * from_row]
            quantise_rows(type, info.type, raw, columns, out[first : first + together])
            drop_mapped_pages(raw)

        want_mapped_pages(source)
        try:
            list(self._pool.map(chunk, range(0, rows, together)))
        except ModelFileError as error:
            raise ModelFileError(f"{self.path}: tensor {info.name} cannot be quantised: {error.message}") from None
        self._done += rows * columns
        self._report(self._done, self._weights)
        return out.reshape(-1)

    def finish(self) -> None:
        """The model is loaded: what was quantised is kept for the next time, if it was all of it."""
        if self._writer is not None and self._done == self._weights:
            self._writer.finish()
            with contextlib.suppress(OSError):
                trim(self._writer.path.parent, self._cache_bytes, self._writer.path)
        if self._reader is not None and self._reader.damaged:
            self._reader.path.unlink(missing_ok=True)

    def close(self) -> None:
        """What was not finished is not kept."""
        if self._writer is not None:
            self._writer.abandon()
        self._pool.shutdown()
        self._source.close()


def quantised_info(info: TensorInfo, quant: str) -> TensorInfo | None:
    """What `quant` makes of a tensor; None: it stays."""
    columns = info.shape[-1] if info.shape else 0
    if info.type not in FLOATS or len(info.shape) < 2 or info.shape[-2] == 1 or _KEPT.search(info.name):
        return None
    for type in (QUANTS[quant], "Q5_0"):
        if columns % BY_NAME[type].block == 0:
            nbytes = math.prod(info.shape[:-1]) * row_bytes(type, columns)
            return replace(info, type=type, offset=0, nbytes=nbytes, file=0)
    return None
