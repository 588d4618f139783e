"""Models that make embeddings: what they answer is a prompt's rows, pooled, whatever the parts and the neighbours."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from tiny_model import write_tiny_model

from helexa.errors import ModelFileError
from helexa.formats.gguf import GGUFFile
from ipc.embedding import request
from ipc.messages import Plan, Pooled, SeatJoin
from workers.inputs import StepInputs
from workers.ops.native.ops import NativeOps
from workers.ops.reference import ReferenceOps
from workers.runner import Runner

PROMPT = [(7 * place) % 200 + 3 for place in range(21)]
KINDS = {"mean": 1, "last": 3}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same weights as a model that generates, and as two that pool."""
    folder = tmp_path_factory.mktemp("pooling")
    kinds = {"": None, **KINDS}
    return {name: write_tiny_model(folder / f"{name or 'plain'}.gguf", pooling=kind) for name, kind in kinds.items()}


@pytest.fixture(scope="module", params=["reference", "native"])
def runners(request, files):
    ops = {"reference": lambda: ReferenceOps(1), "native": lambda: NativeOps(1, 512, 64)}[request.param]
    return {name: Runner(GGUFFile.open(path), ops(), 0, [2], max_seats=64) for name, path in files.items()}


def embedded(runner: Runner, chunks: list[int]) -> np.ndarray:
    """The prompt's embedding, computed in these parts beside a prompt of two tokens that is embedded in each step."""
    runner.allocate(16, 32)
    own = request("r", "m", PROMPT, runner.pooling).params
    start, found = 0, {}
    for number, count in enumerate(chunks, start=1):
        plan = Plan(1, number, 1, [1], [], [0, 1], [start, 0], [count, 2], [count, 2], [], [], [], [])
        plan.samples = [start + count == len(PROMPT), True]
        plan.ids = [*PROMPT[start : start + count], 40, 41 + number]
        if number == 1:
            plan.joins.append(SeatJoin(0, 0, len(PROMPT), own))
            plan.block_seats, plan.blocks = [0, 0], [0, 1]
        plan.joins.append(SeatJoin(1, 0, 2, own))
        plan.block_seats, plan.blocks = [*plan.block_seats, 1], [*plan.blocks, 8 + number % 4]
        output = runner.step(plan, 0, lambda: 0.0)
        assert dict(zip(output.result.seats, output.result.ids, strict=True))[1] == 2, "an end stands for the token"
        for message in output.scored:
            assert isinstance(message, Pooled)
            found[message.seat] = np.frombuffer(message.values, "<f4")
        start += count
    return found[0]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_do_not_matter(runners, kind):
    """One part, single tokens, and parts of all lengths give the same numbers, bit for bit."""
    whole = embedded(runners[kind], [21])
    for chunks in ([1] * 21, [5, 5, 5, 5, 1], [20, 1], [2, 19]):
        assert embedded(runners[kind], chunks).tobytes() == whole.tobytes()


def rows_of(runner: Runner) -> np.ndarray:
    """What the forward gives for every token of the prompt."""
    runner.allocate(16, 32)
    count = len(PROMPT)
    every = np.arange(count, dtype=np.int32)
    step = StepInputs(
        token_ids=np.array(PROMPT, np.int32),
        positions=every,
        sequence_of_row=np.zeros(count, np.int32),
        row_start=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_tables=np.array([[0, 1]], np.int32),
        logit_rows=every,
    )
    return np.array(runner.ops.run(runner.model.forward, step))


def test_they_are_the_models_rows(runners, files):
    """The rows are those that the head of the same weights makes logits of; the last one, or their mean, is the embedding."""
    rows, logits = rows_of(runners["last"]), rows_of(runners[""])
    weights = {tensor.name: tensor.data for tensor in gguf.GGUFReader(str(files[""])).tensors}
    head = weights.get("output.weight", weights["token_embd.weight"])
    np.testing.assert_allclose(rows @ head.T, logits, rtol=2e-3, atol=2e-3)
    assert rows_of(runners["mean"]).tobytes() == rows.tobytes()
    assert embedded(runners["last"], [21]).tobytes() == rows[-1].astype("<f4").tobytes()
    np.testing.assert_allclose(embedded(runners["mean"], [21]), rows.astype(np.float64).mean(axis=0), rtol=1e-6)


def test_a_row_that_is_not_finite_fails_alone(files):
    """Its neighbour is embedded; it gets an error and no embedding."""
    runner = Runner(GGUFFile.open(files["mean"]), ReferenceOps(1), 0, [2], max_seats=64)
    runner.allocate(16, 32)
    own = request("r", "m", [5, 6], "mean").params
    plan = Plan(1, 1, 1, [], [], [0, 1], [0, 0], [2, 2], [2, 2], [True, True], [5, 6, 7, 8], [0, 1], [0, 1])
    plan.joins = [SeatJoin(seat, 0, 2, own) for seat in (0, 1)]
    run = runner.ops.run
    runner.ops.run = lambda forward, inputs: spoiled(run(forward, inputs))  # type: ignore[method-assign]
    output = runner.step(plan, 0, lambda: 0.0)
    assert [message.seat for message in output.scored] == [1]
    (error,) = output.row_errors
    assert error.seat == 0 and "finite" in error.error and output.result.ids == [-1, 2]


def spoiled(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows[0, 3] = np.nan
    return rows


def test_other_kinds_of_pooling_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="pooling_type"):
        Runner(GGUFFile.open(write_tiny_model(tmp_path / "cls.gguf", pooling=2)), ReferenceOps(1), 0, [2])


def test_architectures_that_cannot_pool_say_so(tmp_path, monkeypatch):
    """A declared pooling is never passed over."""
    monkeypatch.setattr("workers.models.registry.PoolingModel", int)
    with pytest.raises(ModelFileError, match="embeddings of llama models are not served"):
        Runner(GGUFFile.open(write_tiny_model(tmp_path / "mean.gguf", pooling=1)), ReferenceOps(1), 0, [2])
