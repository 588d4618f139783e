"""A hybrid model under the scheduler: its replies are those of the outside model, and the same bits however they came about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import CLIENT, Peer, generate, make_scheduler
from hybrid_checkpoints import CASES, VOCAB, Outside, make, write_folder

from helexa.formats.checkpoint import open_checkpoint
from helexa.scheduler.scheduler import Scheduler
from helexa.scheduler.sequence import Sequence
from ipc.messages import Plan, SamplingParams, SeatJoin
from workers.ops.native import library
from workers.ops.native.ops import NativeOps
from workers.ops.protocol import Ops
from workers.ops.reference import ReferenceOps
from workers.prices import PriceTaker
from workers.runner import Runner, next_plan
from workers.seats import PlanError

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

SEATS, BLOCKS, SNAPSHOTS, TOKENS = 6, 48, 5, 64
CASE = CASES[3]
PROMPTS = [np.random.default_rng(length).integers(0, VOCAB, length).tolist() for length in (100, 6, 77)]
PROMPTS.append([*PROMPTS[0][:70], *PROMPTS[2]])  # begins as the first

OPS: dict[str, Callable[[], Ops]] = {"reference": lambda: ReferenceOps(1)}
if library.why_missing() is None:
    OPS["native"] = lambda: NativeOps(2, 512, 512)


@pytest.fixture(scope="module")
def outside() -> Outside:
    return make(CASE)


@pytest.fixture(scope="module")
def folder(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(CASE, outside, tmp_path_factory.mktemp("hybrid") / "hf")


@pytest.fixture(scope="module", params=OPS)
def runner(folder: Path, request: pytest.FixtureRequest) -> Runner:
    return Runner(open_checkpoint(folder), OPS[request.param](), 0, [], 512, 512)


@dataclass
class Engine:
    """A scheduler and a worker, and what became of each request: its ids, and the digest of each row of logits."""

    runner: Runner
    limits: dict[str, Any] = field(default_factory=dict)
    sequences: dict[str, Sequence] = field(default_factory=dict)
    joins: list[SeatJoin] = field(default_factory=list)

    def __post_init__(self) -> None:
        values: dict[str, Any] = {"seats": SEATS, "blocks": BLOCKS, "snapshots": SNAPSHOTS, **self.limits}
        self.runner.allocate(values["blocks"], values["seats"], values["snapshots"])
        defaults = {"recurrent": True, "snapshot_every": 32, "vocab": VOCAB, "cached_blocks": 32, "step_tokens": 512}
        self.scheduler: Scheduler = make_scheduler(**{**defaults, **values})
        self.peer = Peer(self.scheduler)

    def ask(self, name: str, prompt: list[int], background: bool = False, **params: Any) -> None:
        message = generate(
            name, prompt, hash_logits=True, ignore_eos=True, **{"max_tokens": TOKENS, "temperature": 0.0, **params}
        )
        message.priority = "background" if background else "interactive"
        self.scheduler.add(CLIENT, message, 0.0)
        (self.sequences[name],) = self.scheduler._requests.choices(CLIENT, name)

    def run(self, most: int = 100_000) -> None:
        for _ in range(most):
            plan = self.scheduler.plan_step(0.0)
            if plan is None:
                return
            self.joins += plan.joins
            self._compute(plan)

    def _compute(self, plan: Plan) -> None:
        for substep in range(plan.repeat):
            output = self.runner.step(plan, substep, lambda: 0.0)
            assert not output.row_errors
            self.scheduler.apply_result(output.result, 0.0)
            self.scheduler.check()
            self.peer.receive()
            plan = next_plan(plan)

    def reply(self, name: str) -> tuple[list[int], list[int]]:
        return self.peer.held[name, 0], self.sequences[name].hashes

    @property
    def started_from(self) -> list[int]:
        """Tokens of a snapshot that a sequence went on from, where one did."""
        return [len(join.history) // 4 for join in self.joins if join.snapshot >= 0]


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "sampled"])
def alone(runner: Runner, request: pytest.FixtureRequest) -> tuple[float, list[tuple[list[int], list[int]]]]:
    """The temperature, and each prompt's reply, by itself in a fresh engine, prompts in one step."""
    replies = []
    for index, prompt in enumerate(PROMPTS):
        engine = Engine(runner, {"cached_blocks": 0})
        engine.ask("x", prompt, temperature=request.param, seeds=[index])
        engine.run()
        replies.append(engine.reply("x"))
    return request.param, replies


def ask_all(engine: Engine, temperature: float, turn: str = "") -> None:
    for index, prompt in enumerate(PROMPTS):
        engine.ask(f"{turn}{index}", prompt, temperature=temperature, seeds=[index])


def check(engine: Engine, replies: list[tuple[list[int], list[int]]], turn: str = "") -> None:
    for index, reply in enumerate(replies):
        assert len(reply[0]) == TOKENS and engine.reply(f"{turn}{index}") == reply, f"prompt {index} is answered otherwise"


@pytest.mark.parametrize("step_tokens", [1, 17, 512])
def test_chunks_company_and_cached_prefixes(runner: Runner, alone: Any, step_tokens: int) -> None:
    """All at once, then all again from snapshots."""
    temperature, replies = alone
    engine = Engine(runner, {"step_tokens": step_tokens})
    for turn in ("first", "again"):
        ask_all(engine, temperature, turn)
        engine.run()
        check(engine, replies, turn)
    assert engine.started_from and max(engine.started_from) >= 96


def test_steps_that_the_worker_runs_by_itself(runner: Runner, alone: Any) -> None:
    """Sixteen without the scheduler."""
    temperature, replies = alone
    engine = Engine(runner, {"repeat_steps": 16})
    ask_all(engine, temperature)
    engine.run()
    check(engine, replies)


def test_preemption(runner: Runner, alone: Any) -> None:
    """Two that decode give their seats up to interactive ones, and go on later from the last snapshots of their prompts."""
    temperature, replies = alone
    engine = Engine(runner, {"seats": 2, "snapshots": 12})
    for turn in ((0, 3), (1, 2)):
        for index in turn:
            engine.ask(str(index), PROMPTS[index], temperature=temperature, seeds=[index], background=turn == (0, 3))
        engine.run(30 if turn == (0, 3) else 100_000)
    check(engine, replies)
    assert engine.scheduler.counters.preemptions == 2 and sorted(engine.started_from) == [96, 144]


def test_a_lost_worker(runner: Runner, alone: Any) -> None:
    """All that ran is computed again by a worker that knows nothing, after some steps of prompts and some of decoding."""
    temperature, replies = alone
    engine = Engine(runner, {"step_tokens": 40})
    ask_all(engine, temperature)
    for incarnation, steps in ((2, 3), (3, 30)):
        engine.run(steps)
        engine.scheduler.plan_step(0.0)
        engine.scheduler.worker_lost(incarnation, 0.0)
        runner.allocate(BLOCKS, SEATS, SNAPSHOTS)
    engine.run()
    check(engine, replies)


def test_greedy_ids_are_the_outside_models(runner: Runner, outside: Outside) -> None:
    """64 tokens of each prompt, but that float16 may turn a choice between two that are all but equal; the last from a snapshot
    of the first's."""
    engine = Engine(runner)
    for index, prompt in enumerate(PROMPTS):
        engine.ask(str(index), prompt)
        engine.run()
    assert engine.started_from == [64]
    for index, prompt in enumerate(PROMPTS):
        output = engine.peer.held[str(index), 0]
        logits = outside.logits(prompt + output[:-1], half=True)[len(prompt) - 1 :]
        behind = logits.max(axis=-1) - np.take_along_axis(logits, np.array(output)[:, None], axis=-1)[:, 0]
        assert behind.max() <= 2e-3 and np.count_nonzero(behind) <= 1


def test_plans_that_contradict_the_states_are_refused(runner: Runner) -> None:
    """A history without a snapshot, and snapshots that do not exist."""
    params = SamplingParams(max_tokens=5)
    history = np.array(PROMPTS[0][:16], "<i4").tobytes()

    def plan(join: SeatJoin, start: int, saves: list[int]) -> Plan:
        return Plan(1, 1, 1, [], [join], [0], [start], [1], [1], [False], [5], [0, 0], [0, 1], [0] * len(saves), saves)

    for join, start, saves, message in (
        (SeatJoin(0, 0, 20, params, history), 16, [], "no snapshot of the state"),
        (SeatJoin(0, 0, 20, params, history, 5), 16, [], "snapshot 5 of 5"),
        (SeatJoin(0, 0, 20, params), 0, [7], "snapshot 7 of 5"),
    ):
        runner.allocate(4, 2, 5)
        with pytest.raises(PlanError, match=message):
            runner.step(plan(join, start, saves), 0, lambda: 0.0)


def test_prices_are_measured(folder: Path) -> None:
    """With states of the steps' own; afterwards none is held."""
    runner = Runner(open_checkpoint(folder), ReferenceOps(1), 0, [], 16, 8)
    times = iter(range(10**6))
    prices = PriceTaker(runner.held, lambda: next(times) * 1e-6)
    assert [rows for rows, _ in prices.of_rows()] == [1, 2, 4, 8, 16]
    prices.of_positions()
    states = runner.ops._states  # type: ignore[attr-defined]
    assert states.nbytes == 0
    assert runner.state_bytes() == runner.ops.bytes_per_state(runner.model.recurrent) > 0  # type: ignore[attr-defined]
