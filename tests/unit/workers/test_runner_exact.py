"""X1 at the worker's level: a sequence's ids and digests are the same whatever is computed beside it, and in what chunks."""

from __future__ import annotations

import itertools
import random

import pytest

from helexa.formats.gguf import GGUFFile
from ipc.messages import Plan, SamplingParams, SeatJoin
from workers.ops.reference import ReferenceOps
from workers.runner import Runner, next_plan
from workers.seats import PlanError

PROMPTS = [[3 + (index * 7 + place * 3) % 250 for place in range(3 + index * 9)] for index in range(6)]


def clock() -> float:
    return 0.0


class Bench:
    """Runs plans on one runner: seats get blocks from a shuffled pool, parts are cut as told."""

    def __init__(self, runner: Runner, shuffle: int = 0) -> None:
        self.runner = runner
        runner.allocate(96, 16)
        self.free = list(range(96))
        random.Random(shuffle).shuffle(self.free)
        self.computed: dict[int, int] = {}
        self.ids: dict[int, list[int]] = {}
        self.seen: dict[int, list[tuple[int, int]]] = {}
        self.held: dict[int, int] = {}

    def step(self, parts: dict[int, int], joins: dict[int, tuple[list[int], SamplingParams, int]] | None = None) -> None:
        """`parts`: tokens a seat computes; `joins`: who takes a seat."""
        plan = Plan(1, 1, 1, [], [], [], [], [], [], [], [], [], [])
        for seat, (prompt, params, seed) in (joins or {}).items():
            plan.joins.append(SeatJoin(seat, seed, len(prompt), params))
            self.ids[seat], self.computed[seat], self.seen[seat], self.held[seat] = list(prompt), 0, [], 0
        for seat, count in parts.items():
            start = self.computed[seat]
            while self.held[seat] * 16 < start + count:
                plan.block_seats.append(seat)
                plan.blocks.append(self.free.pop())
                self.held[seat] += 1
            plan.seats.append(seat)
            plan.starts.append(start)
            plan.counts.append(count)
            decodes = count == 1 and bool(self.seen[seat]) and start == len(self.ids[seat]) - 1
            plan.carried.append(0 if decodes else count)
            if not decodes:
                plan.ids.extend(self.ids[seat][start : start + count])
            plan.samples.append(start + count == len(self.ids[seat]))
            self.computed[seat] = start + count
        output = self.runner.step(plan, 0, clock)
        for seat, token in zip(output.result.seats, output.result.ids, strict=True):
            self.ids[seat].append(token)
            self.seen[seat].append((token, output.result.hashes[seat]))

    def left(self, seat: int) -> int:
        return len(self.ids[seat]) - self.computed[seat]


def alone(
    runner: Runner, prompt: list[int], params: SamplingParams, seed: int, chunk: int = 1000, steps: int = 12
) -> list[tuple[int, int]]:
    bench = Bench(runner, shuffle=chunk)
    joins: dict | None = {5: (prompt, params, seed)}
    while len(bench.seen.get(5, [])) < steps:
        bench.step({5: min(chunk, bench.left(5) if not joins else len(prompt))}, joins)
        joins = None
    return bench.seen[5]


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def runner(request, tiny_model_path) -> Runner:
    return Runner(GGUFFile.open(tiny_model_path), ReferenceOps(request.param), 0, [2])


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_chunks_seats_and_blocks_do_not_matter(runner, temperature):
    """Prompt chunks of 1, 5, 16, 17 and all at once, in shuffled blocks."""
    params = SamplingParams(max_tokens=50, temperature=temperature, hash_logits=True)
    for index, prompt in enumerate(PROMPTS):
        whole = alone(runner, prompt, params, index)
        assert all(alone(runner, prompt, params, index, chunk) == whole for chunk in (1, 5, 16, 17))


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_neighbours_do_not_matter(runner, temperature):
    """Six ragged sequences that join one after another, with prefill and decode rows mixed in every step."""
    params = SamplingParams(max_tokens=50, temperature=temperature, hash_logits=True)
    expected = [alone(runner, prompt, params, index) for index, prompt in enumerate(PROMPTS)]
    bench, order = Bench(runner, shuffle=3), [4, 0, 5, 2, 1, 3]
    for turn in itertools.count():
        joins = {order[turn]: (PROMPTS[order[turn]], params, order[turn])} if turn < len(order) else {}
        parts = {seat: min(7, bench.left(seat)) for seat in bench.ids if len(bench.seen[seat]) < 12}
        parts |= {seat: min(7, len(prompt)) for seat, (prompt, _, _) in joins.items()}
        if not parts:
            break
        bench.step(parts, joins)
    assert [bench.seen[index] for index in range(len(PROMPTS))] == expected


def test_threads_give_equal_bits(tiny_model_path):
    """One to five threads, the same digests."""
    params = SamplingParams(max_tokens=50, temperature=0.0, hash_logits=True)
    file = GGUFFile.open(tiny_model_path)
    seen = [alone(Runner(file, ReferenceOps(threads), 0, [2]), PROMPTS[3], params, 0) for threads in range(1, 6)]
    assert all(item == seen[0] for item in seen)


def test_a_run_of_several_steps_equals_single_ones(tiny_model_path):
    """`repeat`: the worker feeds itself its last token, in blocks that were reserved."""
    runner = Runner(GGUFFile.open(tiny_model_path), ReferenceOps(1), 0, [2])
    params = SamplingParams(max_tokens=50, temperature=0.0, hash_logits=True, ignore_eos=True)
    expected = alone(runner, PROMPTS[2], params, 0, steps=6)
    runner.allocate(8, 2)
    prompt = PROMPTS[2]
    plan = Plan(
        1,
        1,
        6,
        [],
        [SeatJoin(0, 0, len(prompt), params)],
        [0],
        [0],
        [len(prompt)],
        [len(prompt)],
        [True],
        prompt,
        [0] * 4,
        [4, 3, 2, 1],
    )
    seen = []
    for substep in range(6):
        output = runner.step(plan, substep, clock)
        seen.append((output.result.ids[0], output.result.hashes[0]))
        assert output.result.last == (substep == 5)
        plan = next_plan(plan)
    assert seen == expected


@pytest.mark.parametrize(
    "change",
    [
        {"seats": [3]},  # an empty seat
        {"blocks": [99], "block_seats": [0]},  # no such block
        {"starts": [5]},  # positions it does not hold
        {"ids": [3, 999]},  # outside the vocabulary
        {"carried": [0]},  # a decode row without a last token
        {"block_seats": [], "blocks": []},  # no block to write to
    ],
    ids=lambda change: "+".join(change),
)
def test_a_plan_that_contradicts_the_seats_is_refused(tiny_model_path, change):
    """The worker never computes what it cannot: it says PlanError and would be replaced."""
    runner = Runner(GGUFFile.open(tiny_model_path), ReferenceOps(1), 0, [2])
    runner.allocate(4, 4)
    params = SamplingParams(max_tokens=5)
    fields = {
        "incarnation": 1,
        "step": 1,
        "repeat": 1,
        "leaves": [],
        "joins": [SeatJoin(0, 1, 2, params)],
        "seats": [0],
        "starts": [0],
        "counts": [2],
        "carried": [2],
        "samples": [True],
        "ids": [3, 4],
        "block_seats": [0],
        "blocks": [1],
        **change,
    }
    with pytest.raises(PlanError):
        runner.step(Plan(**fields), 0, clock)


def test_one_broken_row_fails_alone(tiny_model_path):
    """A NaN in one sequence's KV is that row's error, with its counts; its neighbour's bits are what they are alone."""
    ops = ReferenceOps(1)
    runner = Runner(GGUFFile.open(tiny_model_path), ops, 0, [2])
    params = SamplingParams(max_tokens=50, temperature=0.0, hash_logits=True)
    expected = alone(runner, PROMPTS[1], params, 0, steps=3)
    runner.allocate(8, 2)
    joins = [SeatJoin(seat, 0, len(PROMPTS[1]), params) for seat in (0, 1)]
    count = len(PROMPTS[1])
    plan = Plan(1, 1, 1, [], joins, [0, 1], [0, 0], [count] * 2, [count] * 2, [True] * 2, PROMPTS[1] * 2, [0, 1], [0, 1])
    first = runner.step(plan, 0, clock)
    ops._kv.keys[0, 1, 0, 3, 5] = float("nan")
    output = runner.step(next_plan(plan), 0, clock)
    (error,) = output.row_errors
    assert error.seat == 1 and "NaN" in error.error
    assert output.result.ids[1] == -1
    seen = [(step.result.ids[0], step.result.hashes[0]) for step in (first, output)]
    assert seen == expected[:2]
