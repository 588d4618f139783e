"""What weight streaming costs: a random model, of which a share of the weights stays on the GPU, decoding N streams at a time.

    python tools/streaming_sweep.py [--share 0.5] [--out FILE.json]

Counters lead: bytes copied to the device for each token fall with N as 1 / N, since a step reads every weight once. Every N must give the
first stream the same logits as one alone, and as a model that stays whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from cuda_model import Plan, prompts, run  # noqa: E402
from random_llama import Shape, write_random_llama  # noqa: E402

from helexa.formats.checkpoint import open_checkpoint  # noqa: E402
from workers.models.registry import load_model  # noqa: E402
from workers.ops.cuda.ops import CudaOps  # noqa: E402
from workers.ops.cuda.weights import held_bytes  # noqa: E402


def loaded(place: Any, folder: Path, plan: Plan, share: float) -> tuple[CudaOps, Any]:
    """The model with at most this share of its weights on the device."""
    ops, file = CudaOps(place, max(plan.sequences) * plan.prompt, max(plan.sequences)), open_checkpoint(folder)
    if share < 1:
        total = held_bytes(file.tensors.values())
        ops.streams.expect(total, int(share * total))
    model = load_model(file, ops)
    ops.allocate_kv(model.layers, max(plan.sequences) * plan.blocks_each, model.kv_heads, model.head_dim)
    return ops, model


def sweep(place: Any, folder: Path, shape: Shape, plan: Plan, share: float) -> list[dict[str, Any]]:
    """An entry for each number of streams. Raises RuntimeError where the first stream's logits differ."""
    write_random_llama(folder, shape)
    ids, found = prompts(shape, plan), []
    whole, model = loaded(place, folder, plan, 1.0)
    expected = [logits[0].tobytes() for _, logits in run(whole, model, ids[:1], plan)]
    del whole, model
    ops, model = loaded(place, folder, plan, share)
    for count in plan.sequences:
        steps = run(ops, model, ids[:count], plan)
        rows = [next(steps)[1]]
        before, started = vars(ops.streams.counters).copy(), time.perf_counter()
        rows += [logits for _, logits in steps]
        seconds, after = time.perf_counter() - started, ops.streams.counters
        if [logits[0].tobytes() for logits in rows] != expected:
            raise RuntimeError(f"with {count} streams the first has other logits than alone, or than unstreamed")
        moved = {name: value - before[name] for name, value in vars(after).items()}
        found.append(
            {
                "streams": count,
                "htod_bytes_per_token": round(moved["htod_bytes"] / moved["tokens"]),
                "page_ins": moved["page_ins"],
                "evictions": moved["evictions"],
                "hit_rate": round(moved["hits"] / (moved["hits"] + moved["page_ins"]), 4),
                "tokens_per_s": round(count * plan.steps / seconds, 2),
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.5, help="of the weights' bytes that stay on the GPU")
    parser.add_argument("--out", type=Path, help="a file for the results as JSON")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("PyTorch finds no GPU", file=sys.stderr)
        return 2
    from cuda_places import gpu

    with tempfile.TemporaryDirectory(prefix="helexa-random-") as folder:
        found = sweep(gpu(), Path(folder), Shape(), Plan(64, 16, (1, 2, 4, 8)), options.share)
    for entry in found:
        print("  ".join(f"{name} {value}" for name, value in entry.items()))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    one = found[0]["htod_bytes_per_token"]
    return int(any(not np.isclose(entry["htod_bytes_per_token"] * entry["streams"], one, rtol=0.15) for entry in found))


if __name__ == "__main__":
    sys.exit(main())
