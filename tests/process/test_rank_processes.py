"""Device workers that hold one model together, as real processes: the same tokens and digests as one alone, and no rank that waits for
another which is gone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from rank_processes import ROOT, RankProcesses, Script, everything
from tiny_model import write_tiny_model

from ipc.messages import Exported, Join, Load, Plan, Result, SamplingParams, SeatJoin, Yield
from workers.ops.reference import BLAS_ENVIRONMENT

pytestmark = pytest.mark.process

VOCAB = 260


@pytest.fixture(scope="module", params=["Q4_1", "F32"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """9 heads, 3 KV heads and 5 units of hidden columns: no two ranks can have equal shares."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return {"gguf": str(write_tiny_model(path, heads=9, kv_heads=3, head_dim=32, hidden=160, quant=request.param))}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"gguf": str(write_tiny_model(tmp_path_factory.mktemp("models") / "small.gguf", heads=6, kv_heads=3))}


def seen(folder: Path, files: dict[str, str], ranks: int, **load: object) -> Script:
    with RankProcesses(folder, files, ranks, **load) as group:
        loaded = group.load()
        assert len({(item.prices[0][0], len(item.prices), item.fingerprint) for item in loaded}) == 1
        group.allocate()
        return everything(group.step, VOCAB)


@pytest.mark.parametrize("ops", ["native", "reference"])
def test_ranks_make_what_one_makes(files: dict[str, str], ops: str, tmp_path: Path) -> None:
    """Tokens and digests of every row of logits at 2 and 3 ranks are those of 1, in chunks, beside others, on shared blocks, greedy
    and sampled, and in plans of many steps, which were run as such."""
    alone = seen(tmp_path, files, 1, ops=ops).seen
    assert max(substep for _, substep, *_ in alone) == 4 and len({hash for row in alone for hash in row[4].values()}) > 20
    for ranks in (2, 3):
        assert seen(tmp_path, files, ranks, ops=ops).seen == alone
    assert seen(tmp_path, files, 2, ops=ops, threads=4).seen == alone


def test_a_new_scheduler_finds_the_weights_and_makes_a_new_group(small: dict[str, str], tmp_path: Path) -> None:
    """Ranks that wait for each other in a step, when their scheduler is gone before all have the plan, let go and serve the next one,
    with the same tokens."""
    with RankProcesses(tmp_path, small, 3) as group:
        first = group.load()
        group.allocate()
        expected = everything(group.step, VOCAB).seen
        stuck = Plan(1, 9, 1, [], [], [0], [0], [1], [1], [False], [5], [], [])
        for rank in (2, 1):  # rank 0 never gets it
            group.links[rank].send(stuck)
        second = group.load()
        assert [item.load_seconds for item in second] == [item.load_seconds for item in first]
        assert [item.prices for item in second] == [item.prices for item in first]
        group.allocate()
        assert everything(group.step, VOCAB).seen == expected


def test_a_plan_of_many_steps_that_is_cut_short_leaves_nobody_waiting(small: dict[str, str], tmp_path: Path) -> None:
    """Rank 0 ends it at the first message; the others run the next plan as if nothing had been."""
    with RankProcesses(tmp_path, small, 2) as group:
        group.load()
        group.allocate()
        script = Script(group.step)
        script.join(0, [5, 6, 7, 8])
        script.step({0: 4})
        script.run = lambda plan: [*_cut_short(group, plan)]
        script.step({0: 1}, repeat=40)
        assert script.seen[-1][1] < 39
        script.run = group.step
        script.tables[0] = (
            script.tables[0][: -(-script.computed[0] // 16)] if len(script.tables[0]) * 16 < 44 else script.tables[0]
        )
        script.step({0: 1}, repeat=2)
        tokens, hashes = script.ids[0], [row[4][0] for row in script.seen]
    with RankProcesses(tmp_path, small, 1) as group:
        group.load()
        group.allocate()
        script = Script(group.step)
        script.join(0, [5, 6, 7, 8])
        script.step({0: 4})
        script.step({0: 1}, repeat=len(tokens) - 5)
        assert script.ids[0] == tokens and [row[4][0] for row in script.seen] == hashes


def _cut_short(group: RankProcesses, plan: Plan) -> Iterator[Result]:
    group.tell_all(plan)
    group.links[0].send(Yield(1))
    while True:
        result = group.expect(group.links[0], Result)
        yield result
        if result.last:
            return


def test_a_rank_that_fails_ends_the_group(small: dict[str, str], tmp_path: Path) -> None:
    """A plan that rank 0 cannot follow is its Fault; the rank that waits for it drops its connection, and connects to the next
    scheduler."""
    with RankProcesses(tmp_path, small, 2) as group:
        group.load()
        group.allocate()
        group.tell_all(Plan(1, 1, 1, [], [], [3], [0], [1], [1], [False], [5], [], []))
        fault = group.ends(0)
        assert fault is not None and "seat 3 is empty" in fault.message
        assert group.ends(1) is None and group.processes[1].poll() is None


def test_a_rank_that_is_killed_takes_no_other_with_it(small: dict[str, str], tmp_path: Path) -> None:
    """The others wait for it in the step, asleep, until they are ended: their connections stay, and use no time."""
    with RankProcesses(tmp_path, small, 3) as group:
        group.load()
        group.allocate()
        group.kill(2)
        assert group.ends(2) is None
        join = SeatJoin(0, 1, 1, SamplingParams(max_tokens=5))
        plan = Plan(1, 1, 1, [], [join], [0], [0], [1], [1], [True], [5], [0], [0])
        for rank in (1, 0):
            group.links[rank].send(plan)
        assert not select.select(group.links[:2], [], [], 0.2)[0]
        assert all(process.poll() is None for process in group.processes[:2])


def test_ranks_that_loaded_different_models_say_so(small: dict[str, str], tmp_path: Path) -> None:
    """The sanity exchange: every rank answers a fault of loading."""
    other = write_tiny_model(tmp_path / "other.gguf", heads=6, kv_heads=3, seed=1)
    with RankProcesses(tmp_path, small, 2) as group:
        group.connect()
        group.links[1].send(Load(**{**structs.asdict(group.load_message), "files": {"gguf": str(other)}}))
        group.links[0].send(group.load_message)
        handles = [group.expect(link, Exported).handles for link in group.links]
        group.tell_all(Join(handles))
        for rank in range(2):
            fault = group.ends(rank)
            assert fault is not None and fault.kind == "load" and "ranks 1 loaded something else than rank 0" in fault.message


def test_more_ranks_than_kv_heads_are_a_fault_of_loading(small: dict[str, str], tmp_path: Path) -> None:
    """Of every rank, with the remedy."""
    with RankProcesses(tmp_path, small, 4) as group:
        group.connect()
        group.tell_all(group.load_message)
        for rank in range(4):
            fault = group.ends(rank)
            assert fault is not None and fault.kind == "load" and "set devices.tensor_parallel to at most 3" in fault.message


def test_weights_are_quantised_and_kept_once(small: dict[str, str], tmp_path: Path) -> None:
    """Two ranks that quantise at load make the tokens of one, whether the blocks are made, or found where an earlier start, or rank 0
    alone, left them."""
    quantised = {"quant": "q8_0", "quant_cache": str(tmp_path / "cache"), "quant_cache_bytes": 1 << 30}
    alone = seen(tmp_path, small, 1, quant="q8_0").seen
    for _ in range(2):
        assert seen(tmp_path, small, 2, **quantised).seen == alone
        assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_recorded_step_of_several_ranks_runs_again_on_one(small: dict[str, str], tmp_path: Path) -> None:
    """Recordings are rank 0's, and need no other rank: the same tokens and digests."""
    with RankProcesses(tmp_path, small, 2, arguments=["--record-plans", str(tmp_path / "steps")]) as group:
        group.load()
        group.allocate()
        everything(group.step, VOCAB)
    recordings = sorted((tmp_path / "steps").iterdir())
    assert len(recordings) > 10
    replayed = subprocess.run(
        [sys.executable, "tools/replay_plan.py", str(recordings[-1])],
        cwd=ROOT,
        env={**os.environ, **BLAS_ENVIRONMENT},
        check=False,
    )
    assert replayed.returncode == 0
