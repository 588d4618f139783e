"""GGML tensor types against the `gguf` package's own dequantisation, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from helexa.errors import ModelFileError
from helexa.formats import ggml_types


def reference(data: np.ndarray, type: str) -> np.ndarray:
    return gguf.dequantize(data, gguf.GGMLQuantizationType[type])


def bits(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, dtype=np.float32).tobytes()


@pytest.mark.parametrize("type", ggml_types.SERVED)
def test_dequantise_random_bits(type: str) -> None:
    """Random bytes, so every nibble and also infinite and denormal scales; NaNs need only be NaNs."""
    columns, rows = 256, 64
    data = np.random.default_rng(1).integers(0, 256, (rows, ggml_types.row_bytes(type, columns)), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours, theirs = ggml_types.dequantise(type, data, columns), reference(data, type)
    assert ours.shape == (rows, columns) and ours.dtype == np.float32
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert bits(np.nan_to_num(ours)) == bits(np.nan_to_num(theirs))


@pytest.mark.parametrize("type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_dequantise_real_values(type: str) -> None:
    """Values quantised by the package come back bit-equal to its own dequantisation, from a flat array too."""
    dense = np.random.default_rng(2).standard_normal((8, 96)).astype(np.float32)
    packed = gguf.quantize(dense, gguf.GGMLQuantizationType[type])
    flat = np.ascontiguousarray(packed).view(np.uint8).ravel()
    ours = ggml_types.dequantise(type, flat, 96)
    assert bits(ours) == bits(reference(packed, type))
    assert np.abs(ours - dense).max() < 0.5


def test_geometry_is_the_packages() -> None:
    """Ids, block sizes and bytes of every known type."""
    for item in ggml_types.BY_NAME.values():
        theirs = gguf.GGMLQuantizationType[item.name]
        assert item.id == theirs.value
        assert (item.block, item.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_names_of_types_without_geometry() -> None:
    """Every type of the package has its name in our errors."""
    for theirs in gguf.GGMLQuantizationType:
        name = ggml_types.name_of(theirs.value)
        assert name in (theirs.name, f"number {theirs.value}")
    assert ggml_types.name_of(12345) == "number 12345"


@pytest.mark.parametrize("type", ["IQ4_NL", "nonsense"])
def test_types_that_are_not_served(type: str) -> None:
    """Refused by name, with those that are served."""
    with pytest.raises(ModelFileError, match=rf"{type}.*served: F32, F16, BF16, Q4_0, Q4_1, Q5_0"):
        ggml_types.dequantise(type, np.zeros(210, np.uint8), 256)


def test_sizes_that_do_not_fit() -> None:
    """Columns that are no whole number of blocks, and data that is no whole number of rows."""
    with pytest.raises(ModelFileError, match="blocks of 32"):
        ggml_types.dequantise("Q8_0", np.zeros(34, np.uint8), 31)
    with pytest.raises(ModelFileError, match="blocks of 1"):
        ggml_types.dequantise("F32", np.zeros(4, np.uint8), 0)
    with pytest.raises(ModelFileError, match="rows of 34 bytes"):
        ggml_types.dequantise("Q8_0", np.zeros(35, np.uint8), 32)
