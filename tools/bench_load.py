"""Measures loading a model: time, peak memory against what it ends with, and the disk's own speed beside it.

    python tools/bench_load.py [--model PATH] [--mib 1024] [--quant q4_0] [--cold]

Without a model it writes a synthetic one of `--mib` MiB of bfloat16 weights (a Hugging Face folder, llama) into a temporary folder
and loads that as it is, then with `--quant`, first quantised and then from the cache. Each load is a process of its own.
`peak_ratio` is the peak of its memory over what is left when it is loaded, both beyond what the process had before: resident
memory without pages of mapped files, which the system takes back as it likes; `peak_rss_ratio` counts those too. `--cold`: the
files are dropped from the page cache first. Appends JSON lines to tools/results/load.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from helexa.formats.checkpoint import open_checkpoint  # noqa: E402
from workers.models.registry import load_model  # noqa: E402
from workers.ops.choice import choose_ops  # noqa: E402
from workers.weights.opening import Quantising, open_model  # noqa: E402
from workers.weights.quantised import QuantisedCheckpoint  # noqa: E402

WIDTH, HIDDEN, HEADS, KV_HEADS, VOCAB = 1024, 4096, 16, 4, 16384
SAMPLE_S = 0.002
READ_BYTES = 16 << 20


def shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a llama's tensors."""
    head_dim = WIDTH // HEADS
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield f"{prefix}input_layernorm.weight", (WIDTH,)
        for part, rows in (("q", WIDTH), ("k", KV_HEADS * head_dim), ("v", KV_HEADS * head_dim), ("o", WIDTH)):
            yield f"{prefix}self_attn.{part}_proj.weight", (rows, WIDTH)
        yield f"{prefix}post_attention_layernorm.weight", (WIDTH,)
        for part, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            yield f"{prefix}mlp.{part}_proj.weight", shape
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def write_model(folder: Path, mib: int) -> Path:
    """A folder with about `mib` MiB of random bfloat16 weights."""
    one, none = (sum(2 * int(np.prod(shape)) for _, shape in shapes(layers)) for layers in (1, 0))
    layers = max(1, round(((mib << 20) - none) / (one - none)))
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, at = dict[str, Any](), 0
    for name, shape in shapes(layers):
        nbytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    random = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(layers):
            weights = random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
            file.write((weights.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    return folder


def memory() -> tuple[int, int]:
    """(resident without mapped files, resident) bytes of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    anonymous, shared, resident = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "VmRSS"))
    return anonymous + shared, resident


class Watched:
    """The highest values of `memory` while it watches, by a thread that looks every SAMPLE_S."""

    def __enter__(self) -> Watched:
        self.most = memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            now = memory()
            self.most = (max(self.most[0], now[0]), max(self.most[1], now[1]))

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def read_speed(paths: list[Path], cold: bool) -> float:
    """MB/s of reading the files plainly."""
    started, count = time.perf_counter(), 0
    buffer = bytearray(READ_BYTES)
    for path in paths:
        forget(path, cold)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while taken := file.readinto(buffer):
                count += taken
    return count / 1e6 / (time.perf_counter() - started)


def forget(path: Path, cold: bool) -> None:
    """Drops a file from the page cache."""
    if cold:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def load(model: Path, quant: str, cache: str, threads: int, cold: bool) -> dict[str, Any]:
    """Loads the model in this process; what it took."""
    ops = choose_ops("auto", threads, 64, 4)
    files = {open_checkpoint(model).format: str(model)}
    for path in open_checkpoint(model).files:
        forget(path, cold)
    before = memory()
    with Watched() as watched:
        started = time.perf_counter()
        checkpoint = open_model(files, Quantising(quant, cache, 1 << 40), threads, lambda line: None)
        held = load_model(checkpoint, ops)
        seconds = time.perf_counter() - started
        if isinstance(checkpoint, QuantisedCheckpoint):
            checkpoint.finish()
        after = memory()
    from_cache = isinstance(checkpoint, QuantisedCheckpoint) and checkpoint.from_cache
    checkpoint.close()
    source = sum(path.stat().st_size for path in checkpoint.files)
    del held
    return {
        "quant": quant,
        "from_cache": from_cache,
        "ops": ops.name,
        "seconds": round(seconds, 3),
        "source_mib": round(source / 2**20),
        "final_mib": round((after[0] - before[0]) / 2**20),
        "peak_ratio": round((watched.most[0] - before[0]) / (after[0] - before[0]), 3),
        "peak_rss_ratio": round((watched.most[1] - before[1]) / (after[0] - before[0]), 3),
        "mb_per_s": round(source / 1e6 / seconds),
    }


def in_a_process(model: Path, quant: str, cache: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--load", "--model", str(model), "--quant", quant, "--cache", cache]
    command += ["--threads", str(options.threads), *(["--cold"] if options.cold else [])]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--quant", default="q4_0")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "tools" / "results" / "load.jsonl")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(options.model, options.quant, options.cache, options.threads, options.cold)))
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    where = {"commit": commit, "machine": platform.machine(), "cpus": os.cpu_count(), "threads": options.threads}
    with tempfile.TemporaryDirectory(prefix="bench-load-") as folder:
        (Path(folder) / "model").mkdir()
        model = options.model or write_model(Path(folder) / "model", options.mib)
        files = list(open_checkpoint(model).files)
        disk = {"disk_mb_per_s": round(read_speed(files, options.cold)), "cold": options.cold}
        for quant in ("", options.quant, options.quant):
            line = {**where, **disk, **in_a_process(model, quant, f"{folder}/cache" if quant else "", options)}
            print(json.dumps(line), flush=True)
            with open(options.output, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
