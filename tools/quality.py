"""How far an op set's logits are from float32: KL divergence, perplexity, agreement of the best token.

    python tools/quality.py MODEL.gguf [--ops native] [--text FILE] [--tokens 4000] [--json FILE]

The yardstick is the NumPy reference on the dequantised weights. The text defaults to the Python manual's topics, which come with
Python; it is read in windows of 1,000 tokens.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from helexa.formats.gguf import GGUFFile
from helexa.text.tokenizer import Tokenizer
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import load_model
from workers.ops.choice import choose_ops
from workers.ops.protocol import Ops

WINDOW, ROWS = 1000, 50


def manual() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def steps(ids: np.ndarray) -> Iterator[StepInputs]:
    """One window as steps of ROWS tokens that all want logits."""
    blocks = np.arange(-(-WINDOW // BLOCK_SIZE), dtype=np.int32)[None]
    for start in range(0, len(ids), ROWS):
        part = ids[start : start + ROWS].astype(np.int32)
        count = len(part)
        yield StepInputs(
            token_ids=part,
            positions=np.arange(start, start + count, dtype=np.int32),
            sequence_of_row=np.zeros(count, np.int32),
            row_start=np.array([0, count], np.int32),
            context_lens=np.array([start + count], np.int32),
            block_tables=blocks,
            logit_rows=np.arange(count, dtype=np.int32),
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def compare(path: Path, ops: Ops, ids: np.ndarray) -> dict[str, float]:
    reference = choose_ops("reference", 2, ROWS, ROWS)
    sides = []
    for side in (reference, ops):
        model = load_model(GGUFFile.open(path), side)
        side.allocate_kv(model.layers, -(-WINDOW // BLOCK_SIZE), model.kv_heads, model.head_dim)
        sides.append((side, model.forward))
    divergences, losses, agree = [], [[], []], []
    for begin in range(0, len(ids), WINDOW):
        window = ids[begin : begin + WINDOW]
        for number, step in enumerate(steps(window)):
            expected, got = (log_softmax(side.run(forward, step)) for side, forward in sides)
            divergences += (np.exp(expected) * (expected - got)).sum(axis=-1).tolist()
            agree += (expected.argmax(axis=-1) == got.argmax(axis=-1)).tolist()
            following = window[number * ROWS + 1 : number * ROWS + 1 + len(expected)]
            for side, values in enumerate((expected, got)):
                losses[side] += (-values[np.arange(len(following)), following]).tolist()
    perplexity = [float(np.exp(np.mean(values))) for values in losses]
    return {
        "tokens": len(divergences),
        "kl_mean": float(np.mean(divergences)),
        "kl_p99": float(np.quantile(divergences, 0.99)),
        "kl_max": float(np.max(divergences)),
        "perplexity_float32": perplexity[0],
        "perplexity": perplexity[1],
        "perplexity_change": perplexity[1] / perplexity[0] - 1,
        "best_token_agrees": float(np.mean(agree)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ops", default="native", choices=("native", "reference"))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    options = parser.parse_args()
    text = options.text.read_text() if options.text else manual()
    ids = np.array(Tokenizer.from_gguf(GGUFFile.open(options.model).metadata).encode(text)[: options.tokens])
    ops = choose_ops(options.ops, 2, ROWS, ROWS)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"ops": ops.name, "model": options.model.name, "machine": platform.machine(), "commit": commit}
    result |= compare(options.model, ops, ids)  # type: ignore[arg-type]
    for name, value in result.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
