"""Runs one recorded step again, by itself, and compares what comes out.

    helexa serve ... with debug.record_plans = "/tmp/steps" in helexa.toml, then
    python tools/replay_plan.py /tmp/steps/step-00000042-000.msgpack [--ops reference] [--threads N]

The KV is computed from the ids, which gives the same bits as any other way; then the step runs as it was planned. Exit
code 0 when ids and digests are the recorded ones, 1 when they differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from helexa.formats.checkpoint import open_checkpoint
from ipc.messages import Plan, Result, SeatJoin
from workers import recording
from workers.inputs import BLOCK_SIZE
from workers.ops.choice import choose_ops
from workers.recording import Recording
from workers.runner import Runner
from workers.weights.opening import Quantising, open_model

CHUNK = 256


def replay(recorded: Recording, runner: Runner) -> Result:
    """The step's result, from histories alone."""
    plan = recorded.plan
    longest = -(-runner.context // BLOCK_SIZE)
    runner.allocate(longest * len(plan.seats), max(plan.seats) + 1)
    tables = {seat: iter(range(index * longest, (index + 1) * longest)) for index, seat in enumerate(plan.seats)}
    joining = {join.seat: join for join in plan.joins}
    whole = Plan(1, plan.step, 1, [], [], [], [], [], [], [], [], [], [])
    taken = 0
    for seat, start, count, carried, samples in zip(
        plan.seats, plan.starts, plan.counts, plan.carried, plan.samples, strict=True
    ):
        ids = list(memoryview(joining[seat].history).cast("i")) if seat in joining else recorded.seats[seat].ids
        source = joining.get(seat) or recorded.seats[seat]
        join = SeatJoin(seat, source.seed, source.prompt_len, source.params)
        for begin in range(0, start, CHUNK):
            part = ids[begin : min(begin + CHUNK, start)]
            runner.step(_part(plan.step, seat, begin, part, tables[seat], join if begin == 0 else None), 0, time.perf_counter)
        if start == 0:
            whole.joins.append(join)
        computed = plan.ids[taken : taken + carried] if carried else ids[start : start + 1]
        taken += carried
        needed = -(-(start + count) // BLOCK_SIZE) - -(-start // BLOCK_SIZE)
        whole.block_seats.extend([seat] * needed)
        whole.blocks.extend(next(tables[seat]) for _ in range(needed))
        whole.seats.append(seat)
        whole.starts.append(start)
        whole.counts.append(count)
        whole.carried.append(count)
        whole.samples.append(samples)
        whole.ids.extend(computed)
    return runner.step(whole, 0, time.perf_counter).result


def _part(step: int, seat: int, begin: int, ids: list[int], table: object, join: SeatJoin | None) -> Plan:
    blocks = -(-(begin + len(ids)) // BLOCK_SIZE) - -(-begin // BLOCK_SIZE)
    taken = [next(table) for _ in range(blocks)]  # type: ignore[call-overload]
    joins = [join] if join else []
    return Plan(1, step, 1, [], joins, [seat], [begin], [len(ids)], [len(ids)], [False], ids, [seat] * blocks, taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("--model", help="the model, when it is not where it was")
    parser.add_argument("--ops", default="auto", choices=("auto", "native", "reference"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    recorded = recording.read(options.recording)
    ops = choose_ops(options.ops, options.threads, max(recorded.load.max_step_tokens, CHUNK), recorded.load.max_seats)
    files = {open_checkpoint(options.model).format: options.model} if options.model else recorded.load.files
    file = open_model(files, Quantising(recorded.load.quant), options.threads, print)
    runner = Runner(file, ops, recorded.load.context, [], max(recorded.load.max_step_tokens, CHUNK), recorded.load.max_seats)
    result, expected = replay(recorded, runner), recorded.result
    same = (result.seats, result.ids, result.hashes) == (expected.seats, expected.ids, expected.hashes)
    print(f"{ops.name}: step {recorded.plan.step}.{recorded.substep}, {len(recorded.plan.seats)} sequences, ids {result.ids}")
    print(
        "equal to the recording"
        if same
        else f"DIFFERS: recorded ids {expected.ids}, digests {expected.hashes} against {result.hashes}"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
