"""Changes model files at random and opens them: each must be refused by a ModelFileError in one line, or read whole.

    python tools/fuzz_model_files.py [--seconds 60] [--seed 0] [--target gguf ...]

Targets: a GGUF, a GGUF in parts, a .safetensors file with its config, several with an index, and a file of the cache of quantised
weights. What is opened is read: every tensor's bytes, a few values dequantised, the model's shape, the tokens that end a reply. A
finding is any other exception, an error of several lines, or an input that makes Python allocate more than MOST_BYTES. Everything
is drawn from the seed. Exit code 1 when there is a finding; the input is left behind and named.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from helexa.catalogue.model_shape import read_shape  # noqa: E402
from helexa.errors import ModelFileError  # noqa: E402
from helexa.formats.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from helexa.formats.end_tokens import checkpoint_end_ids  # noqa: E402
from helexa.formats.ggml_types import BY_NAME, dequantise, row_bytes  # noqa: E402
from helexa.formats.gguf import GGUFFile  # noqa: E402
from workers.weights.quantised import QuantisedCheckpoint  # noqa: E402

MOST_BYTES = 64 << 20
ADDRESS_SPACE = 4 << 30  # a hostile size that is believed ends in a MemoryError, not in the machine's memory
NUMBERS = [0, 1, 7, 31, 32, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
WORDS = [b'"F32"', b'"I64"', b"null", b"-1", b"1e400", b"[]", b"{}", b'"\\ud800"', b"18446744073709551616", b"[[[[", b'"a":']


class Finding(Exception):
    """What should not have happened, and to which input."""


# seeds


def gguf_text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_bytes(part: int = 0, parts: int = 1, types: tuple[str, ...] = tuple(BY_NAME)) -> bytes:
    """A small GGUF with a tensor of each type."""
    strings = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}
    numbers = {"llama.block_count": 1, "llama.attention.head_count": 2, "llama.embedding_length": 256, "llama.context_length": 64}
    numbers |= {"tokenizer.ggml.eos_token_id": 1}
    if parts > 1:
        numbers |= {"split.no": part, "split.count": parts}
    tokens = ["a", "<|im_end|>", "b"]
    entries = [gguf_text(key) + struct.pack("<I", 8) + gguf_text(value) for key, value in strings.items()]
    entries += [gguf_text(key) + struct.pack("<II", 4, value) for key, value in numbers.items()]
    token_list = struct.pack("<IQ", 8, len(tokens)) + b"".join(map(gguf_text, tokens))
    entries.append(gguf_text("tokenizer.ggml.tokens") + struct.pack("<I", 9) + token_list)
    entries.append(gguf_text("tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 1, 3, 1))
    tensors, at = [], 0
    for type in types:
        shape = struct.pack("<IQQ", 2, 256, 2)
        tensors.append(gguf_text(f"blk.{part}.{type}.weight") + shape + struct.pack("<IQ", BY_NAME[type].id, at))
        at += -(-2 * row_bytes(type, 256) // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries + tensors)
    return header + bytes(-len(header) % 32) + bytes(at)


def safetensors_bytes(names: dict[str, list[int]], dtype: str = "F32") -> bytes:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in names.items():
        size = shape[0] * shape[1] * (4 if dtype == "F32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}  # type: ignore[dict-item]
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


CONFIG = b'{"model_type": "llama", "hidden_size": 64, "eos_token_id": [1, 2], "rope_scaling": {"factor": 2.0}}'


def write_gguf(folder: Path) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(gguf_bytes())
    return path


def write_gguf_parts(folder: Path) -> Path:
    for part in range(2):
        (folder / f"m-{part + 1:05d}-of-00002.gguf").write_bytes(gguf_bytes(part, 2, ("F32", "Q4_K")))
    return folder / "m-00001-of-00002.gguf"


def write_safetensors(folder: Path) -> Path:
    (folder / "config.json").write_bytes(CONFIG)
    names = {"model.embed_tokens.weight": [4, 64], "model.layers.0.mlp.up_proj.weight": [8, 64]}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(names))
    return folder


def write_index(folder: Path) -> Path:
    (folder / "config.json").write_bytes(CONFIG)
    weight_map = {}
    for number, dtype in enumerate(("BF16", "F16"), 1):
        file, name = f"model-{number:05d}-of-00002.safetensors", f"model.layers.{number}.mlp.up_proj.weight"
        (folder / file).write_bytes(safetensors_bytes({name: [8, 64]}, dtype))
        weight_map[name] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_cache(folder: Path) -> Path:
    """The model of `write_safetensors`, and its quantised weights in `cache`."""
    model = folder / "model"
    model.mkdir()
    write_safetensors(model)
    made = quantised(model)
    read(made)
    made.finish()
    made.close()
    return model


def quantised(model: Path) -> QuantisedCheckpoint:
    return QuantisedCheckpoint(open_checkpoint(model), "q8_0", 1, lambda done, total: None, model.parent / "cache", 1 << 30)


TARGETS: dict[str, Callable[[Path], Path]] = {
    "gguf": write_gguf,
    "gguf-parts": write_gguf_parts,
    "safetensors": write_safetensors,
    "index": write_index,
    "cache": write_cache,
}


# one input


def mutated(data: bytes, draw: random.Random) -> bytes:
    """The file with a few of its bytes, numbers or words changed, mostly near its start, or cut, or with a piece doubled."""
    content = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        near = len(content) if draw.random() < 0.3 else min(len(content), 2048)
        at = draw.randrange(near) if near else 0
        kind = draw.random()
        if kind < 0.3 and content:
            content[at] = draw.randrange(256)
        elif kind < 0.6:
            form = draw.choice("BHIQ")
            number = struct.pack(f"<{form}", draw.choice(NUMBERS) & (1 << 8 * struct.calcsize(form)) - 1)
            content[at : at + len(number)] = number
        elif kind < 0.75:
            word = draw.choice(WORDS)
            content[at : at + draw.randrange(12)] = word
        elif kind < 0.85:
            del content[draw.randrange(len(content) + 1) :]
        elif kind < 0.95:
            content[at:at] = content[at : at + draw.randrange(64)]
        else:
            content += draw.randbytes(draw.randrange(64))
    return bytes(content)


def read(model: Checkpoint) -> None:
    """All that is done with a model file before and while it is loaded."""
    for name, info in model.tensors.items():
        data = model.data(name)
        assert len(data) == info.nbytes, f"tensor {name}"
        columns = info.shape[-1] if info.shape else 1
        size = row_bytes(info.type, columns)
        if size <= 1 << 20:
            dequantise(info.type, data[:size], columns)
    checkpoint_end_ids(model)
    if isinstance(model, GGUFFile):
        read_shape(model)


def open_and_read(target: str, model: Path) -> None:
    """Raises ModelFileError where the model is refused."""
    made = quantised(model) if target == "cache" else open_checkpoint(model)
    try:
        read(made)
    finally:
        made.close()


def check(target: str, model: Path) -> bool:
    """Whether the model is read. Raises Finding."""
    tracemalloc.start()
    try:
        open_and_read(target, model)
        outcome = True
    except ModelFileError as error:
        if not error.message.isprintable() or len(error.message) > 10_000:
            raise Finding(f"an error of {len(error.message)} characters: {error.message[:500]!r}") from None
        outcome = False
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if most > MOST_BYTES:
        raise Finding(f"{most / 2**20:.0f} MiB were allocated")
    if target == "cache" and not outcome:
        raise Finding("a cache file is never an error")
    return outcome


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def inputs(target: str, seed: int, folder: Path) -> Iterator[tuple[str, bool]]:
    """(name, whether it was read) of one input after the other, for ever."""
    model = TARGETS[target](folder)
    changeable = files_of(folder / "cache" if target == "cache" else folder)
    contents = {path: path.read_bytes() for path in changeable}
    number = 0
    while True:
        name = f"{seed}/{target}/{number}"
        draw = random.Random(name)
        path = draw.choice(changeable)
        path.write_bytes(mutated(contents[path], draw))
        try:
            yield name, check(target, model)
        except Finding as finding:
            raise Finding(f"{name}: {finding}; the input is in {folder}") from finding
        path.write_bytes(contents[path])
        number += 1


def fuzz(target: str, seed: int, seconds: float, count: int, clock: Callable[[], float] = time.monotonic) -> tuple[int, int]:
    """(inputs, of which were read), until `seconds` are over or `count` inputs are done. Raises Finding."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{target}-"))
    end, tried, accepted = clock() + seconds, 0, 0
    for _, outcome in inputs(target, seed, folder):
        tried, accepted = tried + 1, accepted + outcome
        if tried == count or clock() > end:
            break
    shutil.rmtree(folder)
    return tried, accepted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="may be repeated; default: all")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    targets = options.target or list(TARGETS)
    for target in targets:
        try:
            tried, accepted = fuzz(target, options.seed, options.seconds / len(targets), 1 << 60)
        except Finding as finding:
            print(f"{target}: {finding}")
            return 1
        print(f"{target}: {tried} inputs, {accepted} of them read", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
