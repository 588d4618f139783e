"""A whole model on the CUDA ops, as tools/gpu_check.py runs a large one: a sequence's bits in company and from graphs, draws, and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_llama import Shape, write_random_llama

from helexa.formats.checkpoint import open_checkpoint
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import load_model
from workers.ops import sampling
from workers.ops.cuda.ops import CudaOps
from workers.ops.protocol import SampleRows


@dataclass(frozen=True)
class Plan:
    """Prompts of `prompt` tokens, then `steps` decoding steps, for each number of sequences."""

    prompt: int = 100
    steps: int = 20
    sequences: tuple[int, ...] = (1, 8, 32)

    @property
    def blocks_each(self) -> int:
        return -(-(self.prompt + self.steps) // BLOCK_SIZE)


def prompts(shape: Shape, plan: Plan) -> NDArray[np.int32]:
    """Ids of each sequence, those that are decoded included: (sequences, prompt + steps)."""
    size = (max(plan.sequences), plan.prompt + plan.steps)
    return np.random.default_rng(1).integers(0, shape.vocab, size).astype(np.int32)


def step_of(ids: NDArray[np.int32], start: int, count: int, plan: Plan) -> StepInputs:
    """The next `count` tokens of every sequence, of which the last wants logits."""
    sequences = len(ids)
    return StepInputs(
        token_ids=ids[:, start : start + count].reshape(-1).copy(),
        positions=np.tile(np.arange(start, start + count, dtype=np.int32), sequences),
        sequence_of_row=np.repeat(np.arange(sequences, dtype=np.int32), count),
        row_start=np.arange(sequences + 1, dtype=np.int32) * np.int32(count),
        context_lens=np.full(sequences, start + count, np.int32),
        block_tables=np.arange(sequences * plan.blocks_each, dtype=np.int32).reshape(sequences, -1),
        logit_rows=np.arange(1, sequences + 1, dtype=np.int32) * np.int32(count) - np.int32(1),
    )


def run(ops: CudaOps, model: Any, ids: NDArray[np.int32], plan: Plan) -> Iterator[tuple[float, NDArray[np.float32]]]:
    """Seconds and the last logits (sequences, V) of the prompts' step, then of each decoding step."""
    sizes = [plan.prompt, *[1] * plan.steps]
    for start, count in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
        started = time.perf_counter()
        logits = ops.run(model.forward, step_of(ids, start, count, plan))
        yield time.perf_counter() - started, np.array(logits)


def check_draws(ops: CudaOps, model: Any, ids: NDArray[np.int32], plan: Plan) -> None:
    """Drawn where they lie, and drawn at the host: the same ids. Raises RuntimeError."""
    logits, count = ops.run(model.forward, step_of(ids, 0, plan.prompt, plan)), len(ids)
    rules = SampleRows(
        temperature=np.linspace(0, 1.5, count, dtype=np.float32),
        top_k=np.resize(np.array([0, 40, 0, 5], np.int32), count),
        top_p=np.resize(np.array([1, 0.9], np.float32), count),
        min_p=np.resize(np.array([0, 0, 0.05], np.float32), count),
        seed=np.arange(count, dtype=np.uint64),
        position=np.full(count, plan.prompt, np.int32),
    )
    drawn, _ = ops.sample(logits, rules)
    if logits.fetched:
        raise RuntimeError(f"{logits.fetched} rows of logits came to the host for a draw")
    expected, _ = sampling.sample(np.asarray(logits), rules)
    if drawn.tolist() != expected.tolist():
        raise RuntimeError(f"draws on the device differ from their definition: {drawn.tolist()}, {expected.tolist()}")


def check(place: Any, folder: Path, shape: Shape, plan: Plan, seconds: Callable[[], float]) -> dict[str, Any]:
    """Loads a random model and runs it with 1, 8, ... sequences. `seconds` are those left. Raises RuntimeError where bits differ."""
    write_random_llama(folder, shape)
    started = time.perf_counter()
    ops = CudaOps(place, max(plan.sequences) * plan.prompt, max(plan.sequences))
    model, loaded = load_model(open_checkpoint(folder), ops), 0.0
    loaded = time.perf_counter() - started
    ops.allocate_kv(model.layers, max(plan.sequences) * plan.blocks_each, model.kv_heads, model.head_dim)
    ids, alone, found = prompts(shape, plan), [], {}
    for count in plan.sequences:
        if seconds() < 15:
            found[f"x{count}"] = {"left out": "no time"}
            continue
        timed = list(run(ops, model, ids[:count], plan))
        rows = [logits for _, logits in timed]
        alone = alone or [logits[0] for logits in rows]
        differ = [number for number, logits in enumerate(rows) if logits[0].tobytes() != alone[number].tobytes()]
        if differ or not np.isfinite(rows[-1]).all():
            raise RuntimeError(f"among {count} sequences one has other bits than alone, in steps {differ}, or is not finite")
        decoding = sorted(taken for taken, _ in timed[2:])
        found[f"x{count}"] = {
            "prompt_ms": round(timed[0][0] * 1e3, 2),
            "decode_ms": round(decoding[len(decoding) // 2] * 1e3, 3),
            "tokens_per_s": round(count / decoding[len(decoding) // 2], 1),
        }
    check_draws(ops, model, ids[: plan.sequences[-1]], plan)
    graphs = ops.graphs
    counters = {name: getattr(graphs, name) for name in ("captures", "replays", "fallbacks", "invalidations")}
    speeds = "; ".join(f"{name} {values.get('tokens_per_s', '-')} tok/s" for name, values in found.items())
    note = f"{ops.weight_bytes / 2**30:.2f} GiB loaded in {loaded:.1f} s; {speeds}; bits as alone"
    return {"speeds": found, "graphs": counters, "weight_bytes": ops.weight_bytes, "load_s": round(loaded, 1), "note": note}
