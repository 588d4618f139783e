"""Quantisers: against the format's own tools where those can quantise, and within their bounds."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helexa.errors import ModelFileError
from helexa.formats.ggml_types import BY_NAME, dequantise, row_bytes
from helexa.formats.quantise import QUANTS, quantise

OF_32 = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def weights(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, columns)) * np.exp(random.standard_normal((rows, 1)))).astype(np.float32)


@pytest.mark.parametrize("type", OF_32)
def test_bits_are_the_packages(type: str) -> None:
    """Random rows, rows of one value, of zeros, of equal extremes of either sign, and of tiny values."""
    x = weights(64, 256)
    x[1], x[2], x[3, ::2], x[4] = 0.75, 0, 2.5, np.tile([1.0, -1.0], 128)
    x[5, :32], x[6] = np.linspace(-1, 1, 32), x[6] * 1e-7
    x[7] = np.round(x[7] * 2)
    theirs = gguf.quantize(x, gguf.GGMLQuantizationType[type])
    assert quantise(type, x).tobytes() == np.ascontiguousarray(theirs).tobytes()


@pytest.mark.parametrize("type", sorted(QUANTS.values()))
@settings(max_examples=60, deadline=None)
@given(x=arrays(np.float32, (2, 256), elements=st.floats(-1000, 1000, width=32)))
def test_every_weight_is_within_its_bound(type: str, x: np.ndarray) -> None:
    """The bounds of the module's table; a half's rounding of the scale (2^-11 of it, or half of the least half) times the largest
    integer comes on top."""
    data = quantise(type, x)
    assert data.shape == (2, row_bytes(type, 256))
    error = np.abs(dequantise(type, data, 256).astype(np.float64) - x)
    part = np.abs(x.astype(np.float64)).reshape(2, -1, 32)
    span = x.astype(np.float64).reshape(2, -1, 32)
    largest = part.max(axis=-1)
    steps = {"Q8_0": largest / 127, "Q4_0": 2 * largest / 8, "Q5_0": 2 * largest / 16}
    whole = span.max(axis=-1) - span.min(axis=-1)
    steps |= {"Q4_1": whole / 15, "Q5_1": whole / 31}
    if type == "Q4_K":
        low = np.minimum(span.min(axis=-1), 0)
        scale = (span.max(axis=-1) - low) / 15
        d, dmin = scale.max(axis=-1, keepdims=True) / 63, -low.min(axis=-1, keepdims=True) / 63
        steps["Q4_K"] = scale + 16 * d + dmin
    least_half = 2.0**-24 * 63 * 16
    bound = steps[type] / 2 + largest * 3 * 2.0**-11 + least_half
    assert np.all(error.reshape(2, -1, 32) <= bound[:, :, None])


def test_more_bits_are_closer() -> None:
    """Mean squared errors of normal weights, in order."""
    x = weights(64, 1024, 3)
    errors = {type: float(((dequantise(type, quantise(type, x), 1024) - x) ** 2).mean()) for type in QUANTS.values()}
    assert errors["Q8_0"] < errors["Q5_1"] < errors["Q5_0"] < errors["Q4_1"] < errors["Q4_0"]
    assert errors["Q4_K"] < errors["Q4_0"]


@pytest.mark.parametrize("type", sorted(QUANTS.values()))
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_is_refused(type: str, broken: float) -> None:
    """At any place of a block."""
    x = weights(1, BY_NAME[type].block)
    for place in (0, 5, BY_NAME[type].block - 1):
        x[0, place] = broken
        with pytest.raises(ModelFileError, match="not finite"):
            quantise(type, x)


def test_what_cannot_be_quantised() -> None:
    """A type without a quantiser, and a width that is no whole number of blocks."""
    with pytest.raises(ModelFileError, match="Q6_K; possible: Q4_0"):
        quantise("Q6_K", weights(1, 256))
    with pytest.raises(ModelFileError, match="blocks of 256"):
        quantise("Q4_K", weights(1, 96))
