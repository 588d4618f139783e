"""The native library as ctypes: its structures, its functions, and finding it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_size_t, c_void_p
from functools import cache
from pathlib import Path

from helexa.errors import StartError
from workers.ops.native.build import LIBRARY_NAME, SOURCE_DIR, source_hash

BUILD_COMMAND = "python -m workers.ops.native.build"
REMEDY = f"install a C++ compiler (g++ or clang++), then run `{BUILD_COMMAND}` in the environment that helexa is installed in"

# enum helexa_type
_TYPE_ORDER = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
TYPES = {name: number for number, name in enumerate(_TYPE_ORDER)}
QUANTISED_TYPES = frozenset(_TYPE_ORDER[3:])

# enum helexa_op_kind
EMBED, RMS_NORM, ADD, LINEAR, ROPE_KV, ATTENTION, SILU_MUL, GATHER, QUANTISE, LINEAR_SILU = range(10)
GELU_MUL, LINEAR_GELU, SCALE, SOFT_CAP, NORM_HEADS, MOE = range(10, 16)
ALL_GATHER, EMBED_ACROSS, GATHER_LOGITS = range(16, 19)

CAUSAL_CONV, GDN_GATES, DELTA_RULE, GATED_NORM, SIGMOID_MUL = range(32, 37)


class CSegment(Structure):
    _fields_ = [("type", c_int32), ("rows", c_int32), ("data", c_void_p)]


class CLinear(Structure):
    _fields_ = [("inputs", c_int32), ("outputs", c_int32), ("segment_count", c_int32), ("segments", POINTER(CSegment))]


class CRope(Structure):
    _fields_ = [("half", c_int32), ("neox", c_int32), ("positions", c_int32), ("cos", c_void_p), ("sin", c_void_p)]


class CPieces(Structure):
    _fields_ = [("width", c_int32), ("count", c_int32), ("starts", POINTER(c_int32)), ("widths", POINTER(c_int32))]


class CExperts(Structure):
    _fields_ = [
        ("count", c_int32),
        ("top_k", c_int32),
        ("normalise", c_int32),
        ("gate_up", POINTER(CLinear)),
        ("down", POINTER(CLinear)),
        ("hidden", POINTER(CPieces)),
    ]


class CGroup(Structure):
    _fields_ = [
        ("rank", c_int32),
        ("ranks", c_int32),
        ("spins", c_int32),
        ("board", c_void_p),
        ("regions", c_void_p),
        ("region_floats", c_size_t),
        ("logits", c_void_p),
    ]


class CKv(Structure):
    _fields_ = [("data", c_void_p), ("layers", c_int32), ("blocks", c_int32), ("kv_heads", c_int32), ("head_dim", c_int32)]


class CState(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("slots", c_int32),
        ("layers", c_int32),
        ("key_heads", c_int32),
        ("value_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("kernel", c_int32),
        ("tiled", c_int32),
    ]


class CInputs(Structure):
    _fields_ = [
        ("rows", c_int32),
        ("sequences", c_int32),
        ("table_width", c_int32),
        ("logit_rows", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("sequence_of_row", c_void_p),
        ("row_start", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("logit_row_ids", c_void_p),
        ("state_slots", c_void_p),
    ]


class COp(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("on_logit_rows", c_int32),
        ("width", c_int32),
        ("layer", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("eps", c_float),
        ("x", c_void_p),
        ("y", c_void_p),
        ("sum", c_void_p),
        ("out", c_void_p),
        ("quantised_x", c_void_p),
        ("quantised_out", c_void_p),
        ("vector", c_void_p),
        ("vector2", c_void_p),
        ("linear", POINTER(CLinear)),
        ("rope", POINTER(CRope)),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("window", c_int32),
        ("experts", POINTER(CExperts)),
        ("pieces", POINTER(CPieces)),
        ("first_id", c_int32),
    ]


class CSampleRows(Structure):
    _fields_ = [(name, c_void_p) for name in ("temperature", "top_k", "top_p", "log_min_p", "seed", "position")]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "helexa_source_hash": (c_char_p, []),
    "helexa_isa_name": (c_char_p, [c_int32]),
    "helexa_engine_new": (c_void_p, [c_char_p, c_int32, c_int32]),
    "helexa_engine_free": (None, [c_void_p]),
    "helexa_engine_set_kv": (None, [c_void_p, POINTER(CKv)]),
    "helexa_engine_set_state": (None, [c_void_p, POINTER(CState)]),
    "helexa_engine_set_group": (None, [c_void_p, POINTER(CGroup)]),
    "helexa_state_bytes": (c_size_t, [POINTER(CState)]),
    "helexa_packed_bytes": (c_size_t, [c_int32, c_int32, c_int32]),
    "helexa_pack": (None, [c_int32, c_int32, c_int32, c_void_p, c_void_p]),
    "helexa_quantise_weights": (c_int32, [c_int32, c_int32, c_size_t, c_void_p, c_void_p]),
    "helexa_quantised_bytes": (c_size_t, [c_int32, c_int32]),
    "helexa_kv_block_bytes": (c_size_t, [c_int32, c_int32]),
    "helexa_run": (c_char_p, [c_void_p, POINTER(COp), c_int32, POINTER(CInputs)]),
    "helexa_sample": (None, [c_void_p, c_void_p, c_int32, c_int32, c_size_t, POINTER(CSampleRows), c_void_p]),
}


def why_missing(path: Path = SOURCE_DIR / LIBRARY_NAME) -> str | None:
    """Why the native ops cannot be used, with the remedy; None if they are built."""
    return None if path.exists() else f"the native ops are not built: {REMEDY}"


def load_library(path: Path) -> ctypes.CDLL:
    """The library at `path`. StartError where it is missing, cannot be loaded, or was built from other sources."""
    if reason := why_missing(path):
        raise StartError(reason)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise StartError(f"the native ops cannot be loaded ({error}): run `{BUILD_COMMAND}` again") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise StartError(f"the native ops are older than their sources (no {name}): run `{BUILD_COMMAND}` again")
        function.restype, function.argtypes = result, arguments
    built, expected = library.helexa_source_hash().decode(), source_hash()
    if built != expected:
        differ = f"library {built[:12]}, sources {expected[:12]}"
        raise StartError(f"the native ops were built from other sources ({differ}): run `{BUILD_COMMAND}` again")
    return library


@cache
def native_library() -> ctypes.CDLL:
    """The library that was built beside this file, loaded once."""
    return load_library(SOURCE_DIR / LIBRARY_NAME)


def instruction_sets() -> list[str]:
    """Those that were compiled and that this machine can run, best first."""
    library, names = native_library(), list[str]()
    while name := library.helexa_isa_name(len(names)):
        names.append(name.decode())
    return names
