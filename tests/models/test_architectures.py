"""Every architecture against `transformers`, an outside implementation, in float32, on tiny random checkpoints.

With keys and values in float32, as the outside model has them, what is left is float32's error. The ops that serve round both to
float16; then they are rounded in the outside model's cache too, and what is left are values that lie between two of float16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import Peer, generate, make_scheduler
from numpy.typing import NDArray
from tiny_checkpoints import CASES, VOCAB, Case, make_model, write_folder, write_gguf

from helexa.catalogue.model_shape import read_shape
from helexa.formats.checkpoint import open_checkpoint
from helexa.scheduler.scheduler import Scheduler
from ipc.messages import Plan, Result
from workers.inputs import BLOCK_SIZE, StepInputs
from workers.models.registry import Model, load_model
from workers.ops.native import library
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops
from workers.ops.reference import ReferenceOps
from workers.runner import Runner, next_plan

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")

ROWS = 128
TOKENS = 64
SEQUENCES = [np.random.default_rng(length).integers(0, VOCAB, length).tolist() for length in (50, 7, 33)]


@dataclass(frozen=True)
class OpSet:
    """`tolerance` is the most that a logit may be off, where their spread is about 1."""

    make: Callable[[], Ops]
    half: bool  # whether keys and values are float16
    tolerance: float


OPS = {
    "reference-float32": OpSet(lambda: ReferenceOps(1, kv_type=np.float32), half=False, tolerance=1e-4),
}
if library.why_missing() is None:
    OPS["native"] = OpSet(lambda: NativeOps(1, ROWS, ROWS), half=True, tolerance=2e-3)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The outside model's threads spin, which costs more than they save on matrices so small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Checkpoints:
    """The outside model, and its weights in both formats."""

    outside: Any
    paths: dict[str, Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Checkpoints]:
    made: dict[str, Checkpoints] = {}

    def of(case: Case) -> Checkpoints:
        if case.name not in made:
            folder, model = tmp_path_factory.mktemp(case.name), make_model(case)
            paths = {"safetensors": write_folder(model, folder / "hf")}
            if case.gguf:
                paths["gguf"] = write_gguf(case, model, folder / "model.gguf")
            made[case.name] = Checkpoints(model, paths)
        return made[case.name]

    return of


def outside_logits(model: Any, ids: list[int], half: bool) -> NDArray[np.float32]:
    """(len(ids), V); `half`: keys and values rounded to float16."""
    from transformers import DynamicCache

    class HalfCache(DynamicCache):  # type: ignore[misc]
        def update(self, keys: Any, values: Any, *rest: Any, **more: Any) -> Any:
            return super().update(keys.half().float(), values.half().float(), *rest, **more)

    with torch.inference_mode():
        cache = {"past_key_values": HalfCache()} if half else {"use_cache": False}
        logits: NDArray[np.float32] = model(torch.tensor([ids]), **cache).logits[0].numpy()
    return logits


@dataclass
class Steps:
    """Steps of a model on ops, without an engine: sequences own blocks, parts are computed as told."""

    model: Model
    ops: Ops
    computed: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    used: int = 0

    @classmethod
    def of(cls, path: Path, ops: Ops) -> Steps:
        model = load_model(open_checkpoint(path), ops)
        ops.allocate_kv(model.layers, 64, model.kv_heads, model.head_dim)
        return cls(model, ops)

    def step(self, parts: dict[int, list[int]]) -> dict[int, NDArray[np.float32]]:
        """The logits of every new row, by sequence."""
        counts = [len(ids) for ids in parts.values()]
        starts = [self.computed.get(sequence, 0) for sequence in parts]
        for (sequence, ids), start in zip(parts.items(), starts, strict=True):
            table = self.tables.setdefault(sequence, [])
            while len(table) * BLOCK_SIZE < start + len(ids):
                table.append(self.used * 5 % 64)  # scattered
                self.used += 1
            self.computed[sequence] = start + len(ids)
        widest = max(len(self.tables[sequence]) for sequence in parts)
        inputs = StepInputs(
            token_ids=np.array([token for ids in parts.values() for token in ids], np.int32),
            positions=np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)]).astype(np.int32),
            sequence_of_row=np.repeat(np.arange(len(parts)), counts).astype(np.int32),
            row_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            context_lens=np.array([self.computed[sequence] for sequence in parts], np.int32),
            block_tables=np.array([self.tables[s] + [0] * (widest - len(self.tables[s])) for s in parts], np.int32),
            logit_rows=np.arange(sum(counts), dtype=np.int32),
        )
        logits = self.ops.run(self.model.forward, inputs).copy()
        return dict(zip(parts, np.split(logits, np.cumsum(counts)[:-1]), strict=True))

    def fork(self, source: int, target: int, blocks: int) -> None:
        """`target` begins with the first blocks of `source`, as after a prefix-cache hit."""
        self.tables[target], self.computed[target] = self.tables[source][:blocks], blocks * BLOCK_SIZE


def sources(case: Case) -> list[str]:
    return ["safetensors", "gguf"] if case.gguf else ["safetensors"]


ALL = [pytest.param(case, source, id=f"{case}-{source}") for case in CASES for source in sources(case)]


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("case,source", ALL)
def test_logits_at_every_position(checkpoints: Any, case: Case, source: str, ops: str) -> None:
    """Three ragged sequences in one batch, prefilled in chunks and then token by token, close to the outside model. One of them
    computed alone and at once, and one that starts from another's blocks, give the same bits."""
    made, chosen = checkpoints(case), OPS[ops]
    expected = [outside_logits(made.outside, ids, chosen.half) for ids in SEQUENCES]
    steps = Steps.of(made.paths[source], chosen.make())
    got: list[list[NDArray[np.float32]]] = [[], [], []]
    for counts in ((20, 5, 32), (1, 1, 1), (25, 1, 0), (1, 0, 0), (1, 0, 0), (2, 0, 0)):
        done = [steps.computed.get(index, 0) for index in range(3)]
        parts = {i: SEQUENCES[i][done[i] : done[i] + count] for i, count in enumerate(counts) if count}
        for index, logits in steps.step(parts).items():
            got[index].append(logits)
    for logits, right in zip(got, expected, strict=True):
        assert np.abs(np.concatenate(logits) - right).max() < chosen.tolerance
    assert np.std(expected[0]) > 0.3, "logits too small to tell anything"
    steps.fork(0, 3, 2)
    hit, alone = steps.step({3: SEQUENCES[0][2 * BLOCK_SIZE :]})[3], steps.step({4: SEQUENCES[0]})[4]
    assert hit.tobytes() == np.concatenate(got[0])[2 * BLOCK_SIZE :].tobytes()
    assert alone.tobytes() == np.concatenate(got[0]).tobytes()


@pytest.mark.parametrize("case,source", ALL)
def test_the_plan_reads_the_shape_that_is_loaded(checkpoints: Any, case: Case, source: str) -> None:
    """`helexa plan` and preflight know sizes from the metadata alone."""
    path = checkpoints(case).paths[source]
    shape, model = read_shape(open_checkpoint(path)), load_model(open_checkpoint(path), ReferenceOps(1))
    assert (shape.layers, shape.heads, shape.kv_heads) == (model.layers, model.heads, model.kv_heads)
    assert (shape.head_dim, shape.vocab, shape.context) == (model.head_dim, model.vocab, model.context)


@dataclass
class RunnerWorker:
    """A Runner as `engine_driver` drives a worker."""

    runner: Runner

    def run_all(self, plan: Plan) -> list[Result]:
        results: list[Result] = []
        for substep in range(plan.repeat):
            results.append(self.runner.step(plan, substep, lambda: 0.0).result)
            if results[-1].last:
                break
            plan = next_plan(plan)
        return results


def run_until_idle(scheduler: Scheduler, worker: RunnerWorker, peer: Peer) -> None:
    while (plan := scheduler.plan_step(0.0)) is not None:
        for result in worker.run_all(plan):
            scheduler.apply_result(result, 0.0)
            peer.receive()
    peer.receive()


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("case,source", ALL)
def test_greedy_ids_through_the_engine(checkpoints: Any, case: Case, source: str, ops: str) -> None:
    """Three requests together, then one of them again with a prefix-cache hit: 64 tokens each, all those of the outside model,
    but that float16 may turn a choice between two that are all but equal."""
    made, chosen = checkpoints(case), OPS[ops]
    runner = Runner(open_checkpoint(made.paths[source]), chosen.make(), 0, [], ROWS, ROWS)
    runner.allocate(64, 8)
    scheduler = make_scheduler(vocab=VOCAB, context=256, cached_blocks=32, step_tokens=40)
    worker, peer = RunnerWorker(runner), Peer(scheduler)
    for turn in ((0, 1, 2), (0,)):
        for index in turn:
            request = generate(f"{turn}{index}", SEQUENCES[index], max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
            scheduler.add(b"client", request, 0.0)
        run_until_idle(scheduler, worker, peer)
    outputs = {name: ids for (name, _), ids in peer.held.items()}
    assert outputs["(0,)0"] == outputs["(0, 1, 2)0"]
    for index, prompt in enumerate(SEQUENCES):
        output = outputs[f"(0, 1, 2){index}"]
        logits = outside_logits(made.outside, prompt + output[:-1], chosen.half)[len(prompt) - 1 :]
        assert len(output) == TOKENS
        behind = logits.max(axis=-1) - np.take_along_axis(logits, np.array(output)[:, None], axis=-1)[:, 0]
        assert behind.max() <= (chosen.tolerance if chosen.half else 0)
        assert np.count_nonzero(behind) <= 1
    assert scheduler.counters.cached_tokens >= 48


def test_the_text_part_of_a_checkpoint_that_sees_images(tmp_path: Path) -> None:
    """Gemma 3 beside a vision tower, by the names of published checkpoints and by those of others: the text part alone is read."""
    import transformers
    from safetensors.numpy import load_file, save_file

    text = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9, "head_dim": 16}
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text | sizes, vision_config=vision | {"image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    torch.manual_seed(0)
    outside = transformers.Gemma3ForConditionalGeneration._from_config(config, dtype=torch.float32).eval()
    expected = outside_logits(outside, SEQUENCES[2], half=False)
    outside.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    for prefix in ("language_model.model.", "model.language_model."):
        tensors = load_file(file)
        assert any(name.startswith("language_model.model.") for name in tensors) and len(tensors) > 30
        renamed = {name.replace("language_model.model.", prefix): values for name, values in tensors.items()}
        save_file(renamed, tmp_path / "model.safetensors")
        steps = Steps.of(tmp_path, OPS["reference-float32"].make())
        assert np.abs(steps.step({0: SEQUENCES[2]})[0] - expected).max() < 1e-4 * np.std(expected)
