"""Rotary embeddings (Su et al. 2021) as model files state them, with the scalings that stretch a trained context.

`linear`: Chen et al. 2023. `yarn`: Peng et al. 2023. `llama3`: the Llama 3.1 release, wavelengths beyond the trained context by
`factor`, short ones as they are, and a ramp between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helexa.errors import ModelFileError
from helexa.formats.decoder_shape import Shape
from helexa.formats.fields import Fields
from helexa.formats.ggml_types import dequantise
from workers.ops.protocol import Rope
from workers.weights.tensors import Tensors

Float64 = NDArray[np.float64]

SCALINGS = "none, linear, llama3, yarn"
NO_ROPE = Rope(np.empty(0), neox=True)  # of layers whose queries and keys are not rotated


def inverse_frequencies(base: float, rotary: int) -> Float64:
    """Radians a position, of each pair of columns."""
    frequencies: Float64 = base ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    return frequencies


def llama3(inv_freq: Float64, factor: float, low: float, high: float, trained: int) -> Float64:
    """`low`, `high`: how often a wave fits into `trained` positions, below which it is stretched, above which it is not."""
    fits = trained * inv_freq / (2 * math.pi)
    keep = np.clip((fits - low) / (high - low), 0, 1)
    return inv_freq * (keep + (1 - keep) / factor)


def yarn(base: float, rotary: int, factor: float, trained: int, fast: float = 32.0, slow: float = 1.0) -> Float64:
    """Pairs that turn more than `fast` times within `trained` positions stay, those below `slow` are stretched."""

    def pair_that_turns(times: float) -> float:
        return rotary * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(fast)), 0)
    high = min(math.ceil(pair_that_turns(slow)), rotary - 1)
    stretched = np.clip((np.arange(rotary // 2) - low) / (high - low or 0.001), 0, 1)
    return inverse_frequencies(base, rotary) * (1 - stretched + stretched / factor)


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies queries and keys by."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def from_gguf(fields: Fields, tensors: Tensors, shape: Shape, neox: bool) -> Rope:
    """`neox`: whether pairs are halves of a head, or neighbours. Llama 3's factors are a tensor that divides the frequencies."""
    rotary = fields.count("rope.dimension_count", shape.head_dim)
    base = fields.get("rope.freq_base", float, 10000.0)
    kind = fields.get("rope.scaling.type", str, "none")
    factor = fields.get("rope.scaling.factor", float, fields.get("rope.scale_linear", float, 1.0)) or 1.0
    _check(fields, rotary, base, factor, shape)
    inv_freq, scale = inverse_frequencies(base, rotary), 1.0
    if kind == "linear":
        inv_freq = inv_freq / factor
    elif kind == "yarn":
        trained = fields.count("rope.scaling.original_context_length", shape.context)
        fast = fields.get("rope.scaling.yarn_beta_fast", float, 32.0)
        slow = fields.get("rope.scaling.yarn_beta_slow", float, 1.0)
        inv_freq = yarn(base, rotary, factor, trained, fast, slow)
        scale = fields.get("rope.scaling.yarn_attn_factor", float, yarn_scale(factor))
        scale *= fields.get("rope.scaling.attn_factor", float, 1.0)
    elif kind != "none":
        raise fields.error("rope.scaling.type", kind, f"is not served; served: {SCALINGS}")
    if "rope_freqs.weight" in tensors:
        factors = tensors.take("rope_freqs.weight", (rotary // 2,))
        inv_freq = inv_freq / dequantise(factors.type, factors.data, rotary // 2).reshape(-1)
    return Rope(inv_freq, neox, scale)


def from_hf(fields: Fields, shape: Shape, base: float) -> Rope:
    """By `rope_parameters`, or by `rope_scaling` and `rope_theta` as older configs have it; `base` where the file states none."""
    table = fields.get("rope_parameters", dict, None) or fields.get("rope_scaling", dict, {})
    return from_table(fields, shape, table, fields.get("rope_theta", float, base))


def from_table(fields: Fields, shape: Shape, table: Mapping[str, Any], base: float) -> Rope:
    """By one table of rotary parameters of a config."""
    read = _Parameters(fields, table)
    rotary = int(shape.head_dim * read.number("partial_rotary_factor", fields.get("partial_rotary_factor", float, 1.0)))
    base = read.number("rope_theta", base)
    kind = table.get("rope_type", table.get("type", "default"))
    factor = read.number("factor", 1.0)
    _check(fields, rotary, base, factor, shape)
    inv_freq, scale = inverse_frequencies(base, rotary), 1.0
    trained = int(read.number("original_max_position_embeddings", shape.context))
    if kind == "linear":
        inv_freq = inv_freq / factor
    elif kind == "llama3":
        inv_freq = llama3(inv_freq, factor, read.number("low_freq_factor", 1.0), read.number("high_freq_factor", 4.0), trained)
    elif kind == "yarn":
        inv_freq = yarn(base, rotary, factor, trained, read.number("beta_fast", 32.0), read.number("beta_slow", 1.0))
        weights = read.number("mscale", 0.0), read.number("mscale_all_dim", 0.0)
        usual = yarn_scale(factor, weights[0]) / yarn_scale(factor, weights[1]) if all(weights) else yarn_scale(factor)
        scale = read.number("attention_factor", usual)
    elif kind != "default":
        raise fields.error("rope_type", kind, f"is not served; served: {SCALINGS}")
    return Rope(inv_freq, neox=True, scale=scale)


class _Parameters:
    """Numbers of one table of rotary parameters."""

    def __init__(self, fields: Fields, table: Mapping[str, Any]) -> None:
        self._fields, self._table = fields, table

    def number(self, key: str, default: float) -> float:
        value = self._table.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._fields.error(key, value, "is not a number")
        return float(value)


def _check(fields: Fields, rotary: int, base: float, factor: float, shape: Shape) -> None:
    if rotary % 2 or not 0 < rotary <= shape.head_dim:
        raise ModelFileError(f"{fields.path}: {rotary} rotary columns do not fit heads of {shape.head_dim}")
    if not (base > 1 and math.isfinite(base) and factor > 0 and math.isfinite(factor)):
        raise ModelFileError(f"{fields.path}: a rotary base of {base} and a factor of {factor} make no embedding")
