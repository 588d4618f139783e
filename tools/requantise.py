"""Rewrites a GGUF with its linears in another quantisation, through float32.

    python tools/requantise.py IN.gguf OUT.gguf Q4_0

For comparisons only: quantising twice costs accuracy. The embedding and the norms stay as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np


def requantise(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
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
            wide = gguf.quants.dequantize(np.asarray(data), tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(wide, kind), raw_dtype=kind)
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
    parser.add_argument("type", choices=("Q4_0", "Q4_1", "Q8_0", "F16", "F32"))
    options = parser.parse_args()
    requantise(options.source, options.target, gguf.GGMLQuantizationType[options.type])


if __name__ == "__main__":
    main()
