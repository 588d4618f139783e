"""How far an op set's logits are from float32: KL divergence, perplexity, agreement of the best token.

    python tools/quality.py MODEL.gguf [--ops native] [--text FILE] [--tokens 4000] [--json FILE]

The yardstick is the NumPy reference on the dequantised weights. The text defaults to the Python manual's topics, which come with
Python; it is read in windows of 1,000 tokens. `helexa quant-report` compares quantisations of one model.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np

from helexa.formats.checkpoint import open_checkpoint
from helexa.quality.comparing import ROWS, Side, compare
from helexa.quality.texts import manual
from helexa.web.model_text import read_model_text
from workers.models.registry import load_model
from workers.ops.choice import choose_ops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ops", default="native", choices=("native", "reference"))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    options = parser.parse_args()
    text = options.text.read_text() if options.text else manual()
    ids = np.array(read_model_text(options.model).tokenizer.encode(text)[: options.tokens], np.int32)
    reference, ops = (choose_ops(name, 2, ROWS, ROWS) for name in ("reference", options.ops))
    checkpoint = open_checkpoint(options.model)
    compared = compare(Side(load_model(checkpoint, reference), reference), Side(load_model(checkpoint, ops), ops), ids)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"ops": ops.name, "model": options.model.name, "machine": platform.machine(), "commit": commit}
    result |= asdict(compared)
    for name, value in result.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
