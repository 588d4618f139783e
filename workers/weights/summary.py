"""What was loaded, in one line. Pure."""

from __future__ import annotations

import math
from collections import Counter

from helexa.formats.checkpoint import Checkpoint


def load_summary(checkpoint: Checkpoint, quant: str, packed_bytes: int, kv_bytes_per_token: int, free_bytes: int) -> str:
    """`packed_bytes`: weights as the ops hold them, 0 where they do not say; `free_bytes`: left for KV."""
    counts, sizes, weights = Counter[str](), Counter[str](), 0
    for info in checkpoint.tensors.values():
        counts[info.type] += 1
        sizes[info.type] += info.nbytes
        weights += math.prod(info.shape)
    types = ", ".join(f"{counts[type]} {type} ({_mib(size)})" for type, size in sizes.most_common())
    made = f", quantised at load to {quant}" if quant else ""
    packed = f", packed {_mib(packed_bytes)}" if packed_bytes else ""
    return (
        f"{checkpoint.format}, {weights / 1e6:,.0f} M weights: {types}{made}{packed}; "
        f"KV {kv_bytes_per_token:,} bytes a token; {free_bytes / 2**30:.2f} GiB left for KV"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
