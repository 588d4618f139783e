"""Quantising weights in C++ against the NumPy definition, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helexa.errors import ModelFileError
from helexa.formats.ggml_types import dequantise, row_bytes
from helexa.formats.quantise import QUANTS, quantise
from workers.ops.native import quantising


def rows_of(type: str) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, float32 values) of 600 rows of 512 weights: random, of equal values, of equal extremes, of one sign, tiny and large."""
    random = np.random.default_rng(5)
    x = random.standard_normal((600, 512)) * np.exp(3 * random.standard_normal((600, 1)))
    x[1], x[2], x[3, ::2], x[4] = 0.75, 0, 2.5, np.tile([1.0, -1.0], 256)
    x[5], x[6], x[7], x[8] = np.abs(x[5]), -np.abs(x[6]), x[7] * 1e-12, x[8] * 1e-38
    x[9], x[10, 32:64], x[11] = np.round(x[9] * 4), 0, x[11] * 30
    wide = x.clip(-60000, 60000).astype(np.float32)
    if type == "F32":
        data = wide.view(np.uint8)
    elif type == "F16":
        data = wide.astype(np.float16).view(np.uint8)
    else:
        data = (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return data.reshape(-1), dequantise(type, data, 512)


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("type", sorted(QUANTS.values()))
def test_bits_are_the_definitions(isa: str, source: str, type: str) -> None:
    """Every block of every kind of row."""
    data, values = rows_of(source)
    out = np.empty((len(values), row_bytes(type, 512)), np.uint8)
    quantising.quantise_rows(source, type, data, 512, out)
    assert out.tobytes() == quantise(type, values).tobytes()


@pytest.mark.parametrize("type", sorted(QUANTS.values()))
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_what_is_not_finite_is_refused(isa: str, type: str, broken: float) -> None:
    """At any place."""
    for place in (0, 17, 31, 255):
        x = np.ones((1, 256), np.float32)
        x[0, place] = broken
        with pytest.raises(ModelFileError, match="not finite"):
            quantising.quantise_rows(
                "F32", type, x.view(np.uint8).reshape(-1), 256, np.empty((1, row_bytes(type, 256)), np.uint8)
            )


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy does the same."""
    x: Any = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    out = np.empty((2, row_bytes("Q8_0", 64)), np.uint8)
    monkeypatch.setattr(quantising.lib, "why_missing", lambda: "not built")
    quantising.quantise_rows("F32", "Q8_0", x.view(np.uint8).reshape(-1), 64, out)
    assert out.tobytes() == quantise("Q8_0", x).tobytes()
