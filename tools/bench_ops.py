"""Times the native ops against what this machine can do at most, and whole steps of a model.

    python tools/bench_ops.py [--threads N] [--isa NAME] [--model FILE.gguf]

Prints a table and appends JSON lines (machine, commit, instruction set, threads with each) to tools/results/ops.jsonl. Every
time is the median of its repeats, with the fastest beside it: on a shared machine compare the fastest.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from helexa.formats.gguf import GGUFFile  # noqa: E402
from workers.inputs import StepInputs  # noqa: E402
from workers.models.registry import load_model  # noqa: E402
from workers.ops.native.build import find_compiler  # noqa: E402
from workers.ops.native.ops import NativeOps  # noqa: E402
from workers.ops.protocol import Matrix, Ops, RawTensor, Rope, SampleRows, Value  # noqa: E402

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34, "F32": 128, "F16": 64, "BF16": 64}  # of 32 weights
HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 9, 3, 64, 141
REPEATS = 30


def ceilings(threads: int) -> dict[str, float]:
    """GB/s read from memory and float32 GFLOP/s, measured by bench_ceilings.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "ceilings"))
        source = str(ROOT / "tools" / "bench_ceilings.cpp")
        subprocess.run([*find_compiler(), "-std=c++20", "-O3", "-march=native", "-pthread", source, "-o", program], check=True)
        done = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> dict[str, float]:
    """The median and the fastest of `repeats`, after two that are not counted."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": round(float(np.median(times[2:])), 4), "best_ms": round(min(times[2:]), 4)}


def step(sequences: int, start: int, rows: int, logit_rows: int = 0) -> StepInputs:
    """`rows` new tokens of each of `sequences`, from position `start`; the last `logit_rows` rows want logits."""
    count, blocks = sequences * rows, -(-(start + rows) // 16)
    return StepInputs(
        token_ids=np.random.default_rng(0).integers(0, 1000, count).astype(np.int32),
        positions=np.tile(np.arange(start, start + rows, dtype=np.int32), sequences),
        sequence_of_row=np.repeat(np.arange(sequences, dtype=np.int32), rows),
        row_start=np.arange(0, count + 1, rows, dtype=np.int32),
        context_lens=np.full(sequences, start + rows, np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logit_rows=np.arange(count - logit_rows, count, dtype=np.int32),
    )


def timed_forward(ops: NativeOps, table_width: int, body: Callable[[Ops, Value], Value], inputs: StepInputs) -> dict[str, float]:
    """The time of what `body` adds to the embedding it is given."""
    table = ops.matrix([random_tensor("F32", 1000, table_width)])

    def bare(recording: Ops) -> Value:
        return recording.gather_logit_rows(recording.embed(table))

    def full(recording: Ops) -> Value:
        x = recording.embed(table)
        body(recording, x)
        return recording.gather_logit_rows(x)

    without, whole = milliseconds(lambda: ops.run(bare, inputs)), milliseconds(lambda: ops.run(full, inputs))
    return {name: round(max(whole[name] - without[name], 1e-4), 4) for name in whole}


def random_tensor(kind: str, rows: int, columns: int) -> RawTensor:
    random = np.random.default_rng(rows)
    if kind == "F32":
        data = random.standard_normal((rows, columns), dtype=np.float32).view(np.uint8)
    else:
        data = random.integers(0, 60, rows * columns // 32 * BLOCK_BYTES[kind], dtype=np.uint8)  # small, finite scales
    return RawTensor(kind, kind, (rows, columns), data.reshape(-1))


def linear_of(weight: Matrix, record: Ops, x: Value) -> Value:
    return record.linear(x, weight)


def linears(make: Callable[[], NativeOps]) -> Iterator[dict[str, Any]]:
    """Weights of 24 MiB and more, so that they come from memory."""
    for kind in BLOCK_BYTES:
        ops, columns = make(), 1536
        outputs = (24 << 20) * 32 // (BLOCK_BYTES[kind] * columns) // 16 * 16
        weight = ops.matrix([random_tensor(kind, outputs, columns)])
        for rows in (1, 4, 16, 128):
            times = timed_forward(ops, columns, partial(linear_of, weight), step(1, 0, rows))
            gb, gflop = outputs * columns / 32 * BLOCK_BYTES[kind] / 1e9, 2e-9 * rows * outputs * columns
            rates = {"gb_per_s": round(gb / times["best_ms"] * 1e3, 1), "gflop_per_s": round(gflop / times["best_ms"] * 1e3, 1)}
            yield {"op": "linear", "case": f"{kind} {rows} rows", **times, **rates}


def others(make: Callable[[], NativeOps]) -> Iterator[dict[str, Any]]:
    ops = make()
    ops.allocate_kv(1, 1024, KV_HEADS, HEAD_DIM)
    vector = ops.vector(random_tensor("F32", 1, 1536))
    rope = Rope(1e5 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM), False)
    for rows in (16, 512):
        one = step(1, 0, rows)
        yield {
            "op": "rms_norm",
            "case": f"{rows} rows of 1536",
            **timed_forward(ops, 1536, lambda r, x: r.rms_norm(x, vector, 1e-5), one),
        }
        yield {"op": "silu_mul", "case": f"{rows} rows of 2 x 1536", **timed_forward(ops, 3072, lambda r, x: r.silu_mul(x), one)}

    def attend(record: Ops, qkv: Value) -> Value:
        q = record.rope_kv_write(qkv, 0, HEADS, KV_HEADS, HEAD_DIM, rope)
        return record.attention(q, 0, HEADS, KV_HEADS, HEAD_DIM)

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    for case, inputs in [(f"16 sequences at {CONTEXT}", step(16, CONTEXT, 1)), ("a prefill of 512", step(1, 0, 512))]:
        yield {"op": "rope + attention", "case": case, **timed_forward(ops, width, attend, inputs)}


def draws(make: Callable[[], NativeOps]) -> Iterator[dict[str, Any]]:
    ops = make()
    rules: dict[str, dict[str, float]] = {
        "greedy": {"temperature": 0},
        "full": {},
        "top_k 40, top_p 0.9": {"top_k": 40, "top_p": 0.9},
    }
    for vocab in (49152, 248320):
        logits = np.random.default_rng(1).standard_normal((16, vocab), dtype=np.float32) * 3
        for name, changes in rules.items():
            for rows in (1, 16):
                columns = {"temperature": 0.8, "top_k": 0, "top_p": 1, "min_p": 0} | changes
                rule = SampleRows(
                    temperature=np.full(rows, columns["temperature"], np.float32),
                    top_k=np.full(rows, columns["top_k"], np.int32),
                    top_p=np.full(rows, columns["top_p"], np.float32),
                    min_p=np.full(rows, columns["min_p"], np.float32),
                    seed=np.arange(rows, dtype=np.uint64),
                    position=np.arange(rows, dtype=np.int32),
                )
                times = milliseconds(partial(ops.sample, logits[:rows], rule))
                yield {"op": "sample", "case": f"{name}, {rows} rows of {vocab}", **times}


def steps(make: Callable[[], NativeOps], path: Path) -> Iterator[dict[str, Any]]:
    with GGUFFile.open(path) as file:
        ops = make()
        model = load_model(file, ops)
        ops.allocate_kv(model.layers, 512, model.kv_heads, model.head_dim)
        for batch in (1, 4, 8, 16):
            inputs = step(batch, CONTEXT, 1, batch)
            times = milliseconds(partial(ops.run, model.forward, inputs), 60)
            yield {
                "op": "step",
                "case": f"decode of {batch} at {CONTEXT}",
                **times,
                "tokens_per_s": round(batch / times["ms"] * 1e3),
            }
        for rows in (109, 512):
            inputs = step(1, 0, rows, 1)
            times = milliseconds(partial(ops.run, model.forward, inputs), 6)
            yield {"op": "step", "case": f"prefill of {rows}", **times, "tokens_per_s": round(rows / times["ms"] * 1e3)}


def idle_share(make: Callable[[], NativeOps]) -> float:
    """The share of one core that a pool without work uses."""
    ops = make()
    ops.sample(np.zeros((8, 64), np.float32), SampleRows(*(np.zeros(8, kind) for kind in "fifffi")))
    time.sleep(0.1)
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(1.0)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--model", type=Path, default=None)
    options = parser.parse_args()

    def make() -> NativeOps:
        return NativeOps(options.threads, 512, isa=options.isa)

    where = {"machine": processor(), "commit": commit(), "isa": make().isa, "threads": options.threads}
    results = ROOT / "tools" / "results" / "ops.jsonl"
    results.parent.mkdir(exist_ok=True)
    rows: list[Iterator[dict[str, Any]]] = [linears(make), others(make), draws(make)]
    if options.model:
        rows.append(steps(make, options.model))
    with results.open("a") as file:

        def report(row: dict[str, Any]) -> None:
            file.write(json.dumps(where | row) + "\n")
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)

        print(where)
        report({"op": "ceilings", **ceilings(options.threads)})
        report({"op": "idle", "share_of_a_core": round(idle_share(make), 5)})
        for group in rows:
            for row in group:
                report(row)


if __name__ == "__main__":
    main()
