"""Every kernel and every variant of it that may run: what the compile gate compiles, and what a device loads.

A variant is a set of -D constants. Limits are of one kernel entry on any architecture; the gate holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

ACTIVATIONS = ("f32", "f16", "bf16")
KV_OF_ACTIVATION = {"f32": "f16", "f16": "f16", "bf16": "bf16"}
HEAD_DIMS = (16, 64, 80, 96, 128, 256)
WEIGHT_FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
CONV_TAPS = (4,)
GDN_HEADS = ((64, 128), (128, 128))  # (KEY_DIM, VALUE_DIM)

Defines = tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """At most so many registers a thread, bytes spilled a thread, and bytes of shared memory a block."""

    registers: int
    spilled: int = 0
    shared: int = 5120


@dataclass(frozen=True)
class Kernel:
    """`<name>/<name>.cu`, its entries, and its variants. All its blocks have `threads` threads (-DTHREADS)."""

    name: str
    threads: int
    entries: tuple[str, ...]
    variants: tuple[Defines, ...]
    limits: Limits

    @property
    def source(self) -> Path:
        return FOLDER / self.name / f"{self.name}.cu"


def activation_variant(act: str) -> Defines:
    return (f"ACT={act}",)


def rope_kv_variant(act: str) -> Defines:
    return (f"ACT={act}", f"KV={KV_OF_ACTIVATION[act]}")


def attention_variant(act: str, head_dim: int) -> Defines:
    return (f"ACT={act}", f"KV={KV_OF_ACTIVATION[act]}", f"HEAD_DIM={head_dim}")


def weight_variant(act: str, weight_format: str) -> Defines:
    return (f"ACT={act}", f"FORMAT={weight_format}")


def conv_variant(act: str, taps: int) -> Defines:
    return (f"ACT={act}", f"TAPS={taps}")


def gdn_variant(act: str, key_dim: int, value_dim: int) -> Defines:
    return (f"ACT={act}", f"KEY_DIM={key_dim}", f"VALUE_DIM={value_dim}")


_BY_ACTIVATION = tuple(activation_variant(act) for act in ACTIVATIONS)
_BY_WEIGHT = tuple(weight_variant(act, weight_format) for act, weight_format in product(ACTIVATIONS, WEIGHT_FORMATS))

ARGMAX = Kernel("argmax", 256, ("argmax_partial", "argmax_finish"), ((),), Limits(40))
KEYED_SAMPLING = Kernel("keyed_sampling", 512, ("keyed_sample",), ((),), Limits(64))
RMS_NORM = Kernel("rms_norm", 256, ("rms_norm", "add_rms_norm", "norm_heads", "gated_rms_norm"), _BY_ACTIVATION, Limits(40))
ROPE_KV = Kernel("rope_kv", 128, ("rope_kv_write",), tuple(rope_kv_variant(act) for act in ACTIVATIONS), Limits(64, shared=0))
ATTENTION = Kernel(
    "attention",
    128,
    ("attention", "attention_chunks", "attention_join"),
    tuple(attention_variant(act, dim) for act, dim in product(ACTIVATIONS, HEAD_DIMS)),
    Limits(128),
)
LINEAR = Kernel(
    "linear",
    256,
    tuple(f"linear_rows{rows}{out}" for rows, out in product((1, 4, 8), ("", "_f32"))),
    _BY_WEIGHT,
    Limits(128, shared=0),
)
ELEMENTWISE = Kernel(
    "elementwise", 256, ("add", "add_bias", "scale", "soft_cap", "sigmoid_mul"), _BY_ACTIVATION, Limits(40, shared=0)
)
EMBED = Kernel("embed", 32, ("embed",), _BY_WEIGHT, Limits(64, shared=0))
SILU_MUL = Kernel("silu_mul", 256, ("silu_mul", "gelu_tanh_mul"), _BY_ACTIVATION, Limits(40, shared=0))
GDN_GATING = Kernel("gdn_gating", 128, ("gdn_gating",), _BY_ACTIVATION, Limits(40, shared=0))
CAUSAL_CONV = Kernel(
    "causal_conv",
    128,
    ("causal_conv",),
    tuple(conv_variant(act, taps) for act, taps in product(ACTIVATIONS, CONV_TAPS)),
    Limits(64, shared=0),
)
GDN_RECURRENCE = Kernel(
    "gdn_recurrence",
    128,
    ("gdn_recurrence",),
    tuple(gdn_variant(act, *dims) for act, dims in product(ACTIVATIONS, GDN_HEADS)),
    Limits(200),
)
MOE_ROUTING = Kernel("moe_routing", 256, ("moe_route", "moe_group", "moe_combine"), _BY_ACTIVATION, Limits(64, shared=12544))
MOE_LINEAR = Kernel("moe_linear", 128, ("moe_linear",), _BY_WEIGHT, Limits(168, shared=0))
RANK_EXCHANGE = Kernel(
    "rank_exchange", 128, ("push", "push_rows", "place", "meet", "collect", "own_ids"), ((),), Limits(40, shared=0)
)

KERNELS = (
    ARGMAX,
    KEYED_SAMPLING,
    RMS_NORM,
    ROPE_KV,
    ATTENTION,
    LINEAR,
    ELEMENTWISE,
    EMBED,
    SILU_MUL,
    GDN_GATING,
    CAUSAL_CONV,
    GDN_RECURRENCE,
    MOE_ROUTING,
    MOE_LINEAR,
    RANK_EXCHANGE,
)
