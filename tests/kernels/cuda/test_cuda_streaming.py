"""Weights that come through slots: which stay, in which order the rest is copied, and the same bits as if all stayed."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_model import Plan, prompts, run, step_of
from cuda_on_cpu.place import EmulatedPlace
from cuda_places import place_of
from hypothesis import given
from hypothesis import strategies as st
from random_llama import Shape, write_random_llama
from tiny_model import write_tiny_model

from helexa.errors import ModelFileError
from helexa.formats.checkpoint import open_checkpoint
from ipc.messages import Load
from kernels_cupy.linear.launcher import Weight
from workers import loading
from workers.models.registry import load_model
from workers.ops.cuda.mixtures import Mixtures
from workers.ops.cuda.ops import CudaOps
from workers.ops.cuda.residency import SLOTS, Counters, KeptShare, Turns
from workers.ops.cuda.streaming import Streams
from workers.ops.cuda.weights import DeviceMatrix, held_bytes
from workers.ops.protocol import Expert

ROOT = Path(__file__).resolve().parents[3]
SHAPE, PLAN = Shape(2, 4, 2, 16, 96, 64, 128), Plan(9, 4, (1, 2, 4))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=60), st.floats(0, 1.2))
def test_what_stays(sizes: list[int], share: float) -> None:
    """The first always; of the rest at most what the budget leaves, at no point of the pass more than its even share, and all of it
    where all fits."""
    total = sum(sizes)
    budget = int(share * total)
    decided, rest = KeptShare(budget, total), 0
    stays = [decided.keeps(size) for size in sizes]
    assert stays[0] and decided.kept == sum(size for size, kept in zip(sizes, stays, strict=True) if kept)
    seen = 0
    for size, kept in zip(sizes[1:], stays[1:], strict=True):
        seen, rest = seen + size, rest + size * kept
        assert rest * (total - sizes[0]) <= max(0, budget - sizes[0]) * seen
    assert decided.kept <= max(budget, sizes[0])
    assert all(stays) or budget < total


def test_what_stays_is_spread_evenly() -> None:
    """Half of equal weights: every other one, not the first half, so that a copy always has a kernel to hide behind."""
    decided = KeptShare(50 + 500, 50 + 1000)
    assert [decided.keeps(50)] + [decided.keeps(100) for _ in range(10)] == [True] + [False, True] * 5


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 9])
def test_turns(count: int) -> None:
    """Each pass finds each weight in its slot, however many there are; each is copied once a pass, and none where all have a slot."""
    turns = Turns()
    for page in range(count):
        turns.read(10 + page)
    turns.settle()
    holds, copies = dict(enumerate(turns.first())), 0
    for _ in range(3):
        for page in range(10, 10 + count):
            assert holds[turns.slot(page)] == page
            following = turns.after(page)
            copies += following != page
            holds[turns.slot(page)] = following
        assert list(holds.values()) == turns.first()
    alone = sum(turns.after(page) == page for page in range(10, 10 + count))
    assert copies == 3 * (count - alone) and (alone == count) == (count <= SLOTS)


def test_counters() -> None:
    """Rates are of sums."""
    counters = Counters(hits=3, page_ins=1, evictions=1, htod_bytes=800, tokens=2)
    counters.add(Counters(hits=1, page_ins=3, evictions=2, htod_bytes=200, tokens=2))
    assert (counters.hit_rate, counters.htod_bytes_per_token, counters.evictions) == (0.5, 250.0, 3)
    assert (Counters().hit_rate, Counters().htod_bytes_per_token) == (0.0, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_llama(tmp_path_factory.mktemp("llama"), SHAPE)


def loaded(folder: Path, share: float, **options: Any) -> tuple[CudaOps, Any]:
    ops, file = CudaOps(place_of(**options), 64, 4), open_checkpoint(folder)
    if share < 1:
        ops.streams.expect(held_bytes(file.tensors.values()), int(share * held_bytes(file.tensors.values())))
    model = load_model(file, ops)
    ops.allocate_kv(model.layers, 4 * PLAN.blocks_each, model.kv_heads, model.head_dim)
    return ops, model


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_streamed_or_not_is_the_same(folder: Path, share: float) -> None:
    """Prompts and decoding, captured or not, with slots overwritten as early and filled as late as a GPU might."""
    (whole, model), (streamed, same), (direct, third) = (
        loaded(folder, 1.0),
        loaded(folder, share),
        loaded(folder, share, refuse_capture=True),
    )
    ids = prompts(SHAPE, PLAN)
    for count in (1, 4):
        runs = (run(ops, held, ids[:count], PLAN) for ops, held in ((whole, model), (streamed, same), (direct, third)))
        for (_, expected), (_, got), (_, uncaptured) in zip(*runs, strict=True):
            assert expected.tobytes() == got.tobytes() == uncaptured.tobytes()
    assert streamed.graphs.replays == 6 and streamed.streams.active and not whole.streams.active
    assert streamed.weight_bytes < whole.weight_bytes
    if not torch.cuda.is_available():
        assert direct.graphs.replays == 0


def test_counters_of_steps(folder: Path) -> None:
    """A step copies each streamed weight once, from a graph or not; what stays is a hit; so bytes for a token fall as 1 / N."""
    ops, model = loaded(folder, 0.5)
    ids, per_token = prompts(SHAPE, PLAN), {}
    ops.run(model.forward, step_of(ids[:1], 0, PLAN.prompt, PLAN))
    pages = len(ops.streams._pages)
    assert ops.streams.counters.page_ins == pages + SLOTS  # the first one's, and what the next begins with
    for count in (1, 2, 4):
        before = vars(ops.streams.counters).copy()
        list(run(ops, model, ids[:count], PLAN))
        moved = {name: value - before[name] for name, value in vars(ops.streams.counters).items()}
        steps = 1 + PLAN.steps
        assert moved["page_ins"] == moved["evictions"] == steps * pages and moved["tokens"] == steps * count
        assert moved["htod_bytes"] == steps * sum(page.numel() for page in ops.streams._pages)
        assert moved["hits"] == steps * (14 + 1 - pages)  # a layer has seven linears, and the head is the table
        per_token[count] = moved["htod_bytes"] / moved["tokens"]
    assert per_token[1] == 2 * per_token[2] == 4 * per_token[4]


@pytest.mark.skipif(torch.cuda.is_available(), reason="breaks the emulator's launches")
def test_a_pass_that_broke_off(folder: Path) -> None:
    """A step that failed in the middle, or a capture in vain, leaves slots as they may be: the next step sets them right."""
    ops, model = loaded(folder, 0.3)
    whole, same = loaded(folder, 1.0)
    ids = prompts(SHAPE, PLAN)[:1]
    expected = [logits for _, logits in run(whole, same, ids, PLAN)]
    launch = ops._place.launch

    def break_off() -> None:
        launches = itertools.count()

        def breaks(*arguments: Any) -> None:
            if next(launches) == 9:
                raise MemoryError("injected")
            launch(*arguments)

        ops._place.launch = breaks  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            ops.run(model.forward, step_of(ids, 0, PLAN.prompt, PLAN))
        ops._place.launch = launch  # type: ignore[method-assign]

    break_off()  # the very first pass
    got = [logits for _, logits in run(ops, model, ids, PLAN)]
    break_off()
    again = [np.array(ops.run(model.forward, step_of(ids, PLAN.prompt, 1, PLAN)))]  # from the graph, at once
    assert [logits.tobytes() for logits in [*got, *again]] == [logits.tobytes() for logits in [*expected, expected[1]]]


def test_what_is_not_read_whole_stays() -> None:
    """An embedding's table that was to be streamed is kept from its first use on."""
    streams = Streams(EmulatedPlace())
    streams.expect(100, 0)
    weight = streams.add(Weight(torch.arange(128, dtype=torch.uint8).view(1, 128), "F32", 32))
    kept = streams.keep(weight)
    assert torch.equal(kept.data, weight.data) and streams.keep(weight).data is kept.data
    streams.begin()
    assert streams.bring(weight).data is kept.data
    streams.done(weight)
    streams.end()
    streams.count(1)
    assert streams.counters.page_ins == 0


def test_experts_are_not_streamed(bench: Any) -> None:
    """Their addresses are written down once: they must stay."""
    streams = Streams(EmulatedPlace())
    weight = streams.add(Weight(torch.zeros(32, 128, dtype=torch.uint8), "F32", 32))
    matrix: Any = DeviceMatrix((weight,))
    with pytest.raises(ModelFileError, match="experts cannot be streamed"):
        Mixtures("cpu").of([Expert(matrix, matrix)])


def test_when_weights_are_streamed() -> None:
    """More than nine tenths of the memory: said in one line, with what bounds it. Formats without a kernel count as float32."""
    ops = CudaOps(EmulatedPlace(), 64)
    tensors = [SimpleNamespace(type="F16", shape=(1024, 1024), nbytes=2 << 20)] * 400
    assert held_bytes([*tensors, SimpleNamespace(type="Q5_0", shape=(4, 32), nbytes=88)]) == (800 << 20) + 512  # type: ignore[list-item]
    assert ops.expect_weights(tensors, 0) == "" and ops.streams.stays(1 << 40)  # type: ignore[arg-type]
    line = ops.expect_weights(tensors, 500 << 20)  # type: ignore[arg-type]
    assert line == "450 of 800 MiB of weights are streamed from host memory in each step: 500 MiB is memory.limit_mib"
    assert ops.streams.stays(1 << 20) and not ops.streams.stays(600 << 20)


def test_the_sweep(tmp_path: Path) -> None:
    """tools/streaming_sweep.py in small: its bytes for a token fall as 1 / N, and it compares the bits."""
    spec = importlib.util.spec_from_file_location("streaming_sweep", ROOT / "tools" / "streaming_sweep.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["streaming_sweep"] = module
    spec.loader.exec_module(module)
    found = module.sweep(place_of(), tmp_path, SHAPE, Plan(9, 3, (1, 2)), 0.4)
    assert found[0]["htod_bytes_per_token"] == 2 * found[1]["htod_bytes_per_token"] > 0
    assert 0 < found[0]["hit_rate"] < 1


def test_a_worker_says_that_it_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load with less memory than the model's weights reports it, and holds the rest at the host."""
    ops = CudaOps(EmulatedPlace(), 64)
    monkeypatch.setattr(loading, "choose_ops", lambda *arguments: ops)
    lines: list[str] = []
    model = write_tiny_model(tmp_path / "tiny.gguf")
    loading.load_rank(Load({"gguf": str(model)}, 64, 4, 0, 300_000, 1, "auto"), 0, "cuda", None, lines.append)
    assert ops.streams.active and any(
        "of weights are streamed from host memory in each step: 0 MiB is memory.limit_mib" in line for line in lines
    )
