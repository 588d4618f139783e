"""Quantising weights: in C++ where that is built, else in NumPy, with equal bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError, StartError
from helexa.formats.ggml_types import dequantise
from helexa.formats.quantise import NOT_FINITE, quantise
from workers.ops.native import library as lib
from workers.ops.native.memory import address_of

UInt8 = NDArray[np.uint8]


def quantise_rows(source_type: str, type: str, source: UInt8, columns: int, out: UInt8) -> None:
    """Fills `out`, (rows, row bytes) of `type`, from as many rows of a float type in `source`. ModelFileError as `quantise`."""
    try:
        library = lib.native_library() if lib.why_missing() is None else None
    except StartError:  # built from other sources: who runs ops says so
        library = None
    if library is None:
        out[:] = quantise(type, dequantise(source_type, source, columns))
        return
    source = np.ascontiguousarray(source)
    assert out.flags.c_contiguous and out.flags.writeable
    count = len(out) * columns
    if not library.helexa_quantise_weights(lib.TYPES[source_type], lib.TYPES[type], count, address_of(source), address_of(out)):
        raise ModelFileError(NOT_FINITE)
