"""What the pure scheduler costs: plan_step + apply_result by rows and queue length, and the codec beside it.

python tools/bench_scheduler.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from helexa.scheduler.admission import Limits
from helexa.scheduler.prices import PriceTable, StepPrices
from helexa.scheduler.scheduler import Scheduler
from ipc import codec
from ipc.messages import Deltas, FinishAck, Generate, Plan, Result, SamplingParams

CASES = ((1, 0), (8, 0), (64, 0), (64, 10_000), (256, 10_000))
STEPS = 300


def scheduler(seats: int, queue: int) -> Scheduler:
    limits = Limits(
        context=8192,
        vocab=50_000,
        seats=seats,
        blocks=seats * 512,
        queue_depth=2 * (queue + seats),
        queue_tokens=10**9,
        queue_wait_s=1e9,
        step_tokens=512,
        min_step_ms=25.0,
        slow_client_s=60.0,
        reserve_tokens=2048,
        cached_blocks=2900,
        repeat_steps=1,
    )
    return Scheduler(limits, StepPrices(PriceTable([(1, 2.2), (4, 3.0), (16, 7.2), (128, 35.0)])), frozenset({2}), 1)


def request(number: int) -> Generate:
    prompt = [3 + (number * 7919 + place) % 40_000 for place in range(109)]
    params = SamplingParams(max_tokens=4000, ignore_eos=True, temperature=0.0)
    return Generate(f"chatcmpl-{number:032x}", "m", prompt, [[]], [number], params, 10**6, key=f"key {number % 10}")


def answer(plan: Plan) -> Result:
    seats = [seat for seat, samples in zip(plan.seats, plan.samples, strict=True) if samples]
    return Result(plan.incarnation, plan.step, 0, True, seats, [7] * len(seats), {}, {}, 1.0)


def measure(seats: int, queue: int) -> dict[str, float]:
    """Medians and 95th percentiles in microseconds, once all seats decode."""
    subject = scheduler(seats, queue)
    for number in range(seats + queue):
        subject.add(b"web", request(number), 0.0)
    pure: list[float] = []
    whole: list[float] = []
    while len(pure) < STEPS:
        started = time.perf_counter()
        plan = subject.plan_step(0.0)
        assert plan is not None
        planned = time.perf_counter()
        data = codec.encode(plan)
        result = codec.encode(answer(plan))
        coded = time.perf_counter()
        parsed = codec.decode_from_worker(result)
        assert isinstance(parsed, Result)
        decoded = time.perf_counter()
        subject.apply_result(parsed, 0.0)
        applied = time.perf_counter()
        deltas = Deltas(1, [], [], [], [])
        for sequence, start, end, finish in list(subject.outbox.due()):
            deltas.req_ids.append(sequence.request.req_id)
            deltas.choices.append(sequence.choice)
            deltas.starts.append(start)
            deltas.ids.append(sequence.tokens[sequence.request.prompt_len + start : sequence.request.prompt_len + end])
            subject.outbox.sent(sequence, end, finish)
            if finish is not None:
                subject.acknowledge(b"web", FinishAck(sequence.request.req_id, sequence.choice))
        codec.encode(deltas)
        ended = time.perf_counter()
        if len(plan.seats) == seats and not any(plan.carried):
            pure.append((planned - started + applied - decoded) * 1e6)
            whole.append((ended - started - (coded - planned)) * 1e6)
        del data
    return {
        "seats": seats,
        "queued": queue,
        "plan_and_apply_us": round(statistics.median(pure), 1),
        "plan_and_apply_p95_us": round(sorted(pure)[int(len(pure) * 0.95)], 1),
        "with_output_us": round(statistics.median(whole), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="append the results to this file, one line each")
    options = parser.parse_args()
    for seats, queue in CASES:
        result = measure(seats, queue)
        print("  ".join(f"{name} {value}" for name, value in result.items()))
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
