"""Speed of the native ops with every tensor type, on one llama, and of every architecture family, with one tensor type.

    python tools/bench_families.py [--formats F32,Q4_K,...] [--families llama,...] [--rounds 3] [--batched-bench PATH]

Models have random weights (bench_random_models.py). In each round every model has its turn: decode steps of 1 and of 8 sequences, and
a prompt; printed are the medians of the rounds, in tokens a second, as tables in Markdown, and appended as JSON lines to
tools/results/families.jsonl. `--batched-bench` names llama.cpp's llama-batched-bench, which then has its turn with the same file,
where it can read it; its numbers stand behind a slash. A model is measured as its steps, without a server, on both sides. The
machine must be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench_ops import commit, processor  # noqa: E402
from bench_random_models import FAMILIES, TYPES, VOCAB, write  # noqa: E402

from helexa.formats.gguf import GGUFFile  # noqa: E402
from workers.inputs import BLOCK_SIZE, StepInputs  # noqa: E402
from workers.models.registry import Model, RecurrentModel, load_model  # noqa: E402
from workers.ops.native.ops import NativeOps  # noqa: E402

PROMPT, BATCHES, STEPS = 128, (1, 8), 16  # tokens of a prompt; sequences that decode together; steps that are timed together
LLAMA_STEPS = 32
FAMILY_TYPE = "Q4_K"
MEASURES = ("decode 1", "decode 8", "prompt")


@dataclass
class Measured:
    """A model that is loaded, and its tokens a second by measure, a value a round."""

    name: str
    file: Path
    model: Model
    ops: NativeOps
    load_s: float
    helexa: dict[str, list[float]] = field(default_factory=lambda: {measure: [] for measure in MEASURES})
    llama: dict[str, list[float]] = field(default_factory=lambda: {measure: [] for measure in MEASURES})

    def row(self) -> dict[str, float | str]:
        medians = {measure: round(statistics.median(values), 1) for measure, values in self.helexa.items()}
        theirs = {f"llama.cpp {measure}": round(statistics.median(values), 1) for measure, values in self.llama.items() if values}
        sizes = {"file_mib": round(self.file.stat().st_size / 2**20), "packed_mib": round(self.ops.weight_bytes / 2**20)}
        return {"name": self.name, **sizes, "load_s": round(self.load_s, 2), **medians, **theirs}


def load(name: str, file: Path, threads: int, isa: str | None) -> Measured:
    """Its file is in the page cache already, so the time is that of repacking."""
    ops = NativeOps(threads, PROMPT, max(BATCHES), isa=isa)
    started = time.perf_counter()
    with GGUFFile.open(file) as checkpoint:
        model = load_model(checkpoint, ops)
    seconds = time.perf_counter() - started
    blocks = max(BATCHES) * -(-(PROMPT + 1) // BLOCK_SIZE)
    ops.allocate_kv(model.layers, blocks, model.kv_heads, model.head_dim)
    if isinstance(model, RecurrentModel):
        ops.allocate_state(model.recurrent, max(BATCHES))
    return Measured(name, file, model, ops, seconds)


def inputs(sequences: int, start: int, rows: int) -> StepInputs:
    """`rows` new tokens of each of `sequences` from position `start`; the last of each wants logits."""
    count, blocks = sequences * rows, -(-(start + rows) // BLOCK_SIZE)
    return StepInputs(
        token_ids=np.random.default_rng(0).integers(0, VOCAB, count).astype(np.int32),
        positions=np.tile(np.arange(start, start + rows, dtype=np.int32), sequences),
        sequence_of_row=np.repeat(np.arange(sequences, dtype=np.int32), rows),
        row_start=np.arange(0, count + 1, rows, dtype=np.int32),
        context_lens=np.full(sequences, start + rows, np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logit_rows=np.arange(rows - 1, count, rows, dtype=np.int32),
        state_slots=np.arange(sequences, dtype=np.int32),
    )


def tokens_per_s(held: Measured, step: StepInputs, repeats: int) -> float:
    """After one step that is not counted."""
    held.ops.run(held.model.forward, step)
    started = time.perf_counter()
    for _ in range(repeats):
        logits = held.ops.run(held.model.forward, step)
    seconds = time.perf_counter() - started
    assert np.isfinite(logits).all(), "random weights of a model overflow"
    return repeats * len(step.token_ids) / seconds


def turn(held: Measured) -> None:
    held.helexa["prompt"].append(tokens_per_s(held, inputs(1, 0, PROMPT), 2))
    for batch in BATCHES:
        held.helexa[f"decode {batch}"].append(tokens_per_s(held, inputs(batch, PROMPT, 1), STEPS))


def llama_turn(held: Measured, binary: Path, threads: int) -> None:
    """Nothing is noted where llama.cpp cannot read the file."""
    batches = ",".join(map(str, BATCHES))
    shape = ["-c", "2048", "-b", "2048", "-ub", "512", "-npp", str(PROMPT), "-ntg", str(LLAMA_STEPS), "-npl", batches]
    command = [str(binary), "-m", str(held.file), *shape, "-t", str(threads), "-tb", str(threads), "--output-format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            held.llama[f"decode {result['pl']}"].append(result["speed_tg"])
            if result["pl"] == 1:
                held.llama["prompt"].append(result["speed_pp"])


def measure(models: list[Measured], rounds: int, binary: Path | None, threads: int) -> None:
    for number in range(rounds):
        for held in models if number % 2 else reversed(models):
            turn(held)
            if binary is not None and (number == 0 or held.llama["prompt"]):
                llama_turn(held, binary, threads)


def table(first: str, rows: Iterable[dict[str, float | str]]) -> str:
    """Markdown."""
    lines = [f"| {first} | file, packed MiB | load s | {' | '.join(MEASURES)} |", "| --- " * (3 + len(MEASURES)) + "|"]
    for row in rows:
        cells = [f"{row[name]:,.0f}" + _beside(row.get(f"llama.cpp {name}")) for name in MEASURES]
        lines.append(f"| {row['name']} | {row['file_mib']}, {row['packed_mib']} | {row['load_s']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(value: float | str | None) -> str:
    return f" / {value:,.0f}" if value is not None else ""


def chosen(text: str, names: Iterable[str]) -> list[str]:
    picked = [name for name in text.split(",") if name]
    unknown = sorted(set(picked) - set(names))
    if unknown:
        raise SystemExit(f"{unknown[0]} is none of {', '.join(names)}")
    return picked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(TYPES), help="tensor types; empty: none")
    parser.add_argument("--families", default=",".join(FAMILIES), help="empty: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", help="an instruction set, the best by default")
    parser.add_argument("--batched-bench", type=Path, help="llama.cpp's llama-batched-bench")
    parser.add_argument("--folder", type=Path, help="where the models are kept for the next time; a temporary one by default")
    parser.add_argument("--output", type=Path, default=ROOT / "tools" / "results" / "families.jsonl")
    options = parser.parse_args()
    groups = {
        "type": [(name, FAMILIES["llama"], name) for name in chosen(options.formats, TYPES)],
        "family": [(name, FAMILIES[name], FAMILY_TYPE) for name in chosen(options.families, FAMILIES)],
    }
    with tempfile.TemporaryDirectory(prefix="bench-families-") as temporary:
        folder = options.folder or Path(temporary)
        for group, wanted in groups.items():
            models = []
            for name, family, kind in wanted:
                file = folder / f"{family.architecture}-{kind}.gguf"
                if not file.exists():
                    write(file, family, kind)
                models.append(load(name, file, options.threads, options.isa))
            measure(models, options.rounds, options.batched_bench, options.threads)
            rows = [held.row() for held in models]
            where = {"machine": processor(), "commit": commit(), "threads": options.threads, "rounds": options.rounds}
            with options.output.open("a", encoding="utf-8") as out:
                for row, held in zip(rows, models, strict=True):
                    out.write(json.dumps({**where, "isa": held.ops.isa, "compared": group, **row}) + "\n")
            if rows:
                print(table(group, rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
