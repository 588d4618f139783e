"""Rewrites a GGUF with its linears in another quantisation, through float32.

    python tools/requantise.py IN.gguf OUT.gguf Q4_0

For comparisons only: quantising twice costs accuracy, and a float model is better quantised as it is loaded (`helexa serve --quant`).
The embedding and the norms stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from helexa.formats.ggml_types import dequantise  # noqa: E402
from helexa.formats.quantise import QUANTS, quantise  # noqa: E402


def requantise(source: Path, target: Path, type: str) -> None:
    """`type` is a GGML type name: one of those that can be quantised to, F16 or F32."""
    kind = gguf.GGMLQuantizationType[type]
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            wide = dequantise(tensor.tensor_type.name, raw, int(tensor.shape[0]))
            made = quantise(type, wide) if type in QUANTS.values() else wide.astype(np.float16 if type == "F16" else np.float32)
            writer.add_tensor(tensor.name, made, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, np.asarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("type", choices=(*QUANTS.values(), "F16", "F32"))
    options = parser.parse_args()
    requantise(options.source, options.target, options.type)


if __name__ == "__main__":
    main()
