"""Drives the pure scheduler with a workload and a price table, far faster than real time: what would users see?

    python tools/simulate.py workload.jsonl [--seats 16] [--blocks 2048] [--prices prices.json] [--json]
    python tools/simulate.py --make mixed > workload.jsonl

A workload has one JSON object a line: {"at": seconds, "prompt": tokens, "output": tokens} and, where wanted, "key",
"priority", "prefix" (a name: prompts of one prefix begin alike) and "prefix_tokens". Prices are [[rows, milliseconds], ...]. A
step lasts what its rows cost; nothing else takes time. Printed: TTFT and ITL percentiles, tokens per second, shares by key,
steps, preemptions.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from helexa.errors import RequestError
from helexa.scheduler.admission import Limits
from helexa.scheduler.prices import PriceTable, StepPrices
from helexa.scheduler.scheduler import Scheduler
from ipc.messages import FinishAck, Generate, Plan, Result, SamplingParams

# a 135M model in 4 bits on two cores
PRICES = [(1, 4.2), (4, 7.6), (8, 13.9), (16, 25.8), (109, 116.0), (512, 630.0)]
CLIENT = b"simulated"


@dataclass
class Seen:
    """What one request's user saw, in seconds."""

    at: float
    key: str
    tokens: list[float] = field(default_factory=list)
    refused: str = ""


def make(kind: str, seed: int = 1) -> list[dict[str, object]]:
    """Workloads to start from."""
    chance = random.Random(seed)
    if kind == "mixed":
        at, lines = 0.0, []
        for _ in range(400):
            at += chance.expovariate(4.0)
            lines.append(
                {"at": round(at, 3), "prompt": int(chance.lognormvariate(4.7, 1.0)) + 1, "output": chance.randint(8, 200)}
            )
        return lines
    if kind == "flood":
        calm = [{"at": 1.0 + index, "prompt": 60, "output": 40, "key": "calm"} for index in range(60)]
        return calm + [{"at": 0.0, "prompt": 60, "output": 40, "key": "flood"} for _ in range(1000)]
    if kind == "long-join":
        running = [{"at": 0.0, "prompt": 64, "output": 2000, "key": "running"} for _ in range(8)]
        return [*running, {"at": 3.0, "prompt": 4000, "output": 50, "key": "long"}]
    if kind == "shared":
        return [{"at": 0.5 * n, "prompt": 1050, "output": 30, "prefix": "system", "prefix_tokens": 1000} for n in range(40)]
    raise SystemExit(f"unknown workload {kind!r}; known: mixed, flood, long-join, shared")


def prompt_ids(number: int, line: dict[str, object]) -> list[int]:
    shared = int(str(line.get("prefix_tokens", 0)))
    common = random.Random(str(line.get("prefix", "")))
    own = random.Random(number)
    length = int(str(line["prompt"]))
    return [common.randrange(3, 40_000) for _ in range(min(shared, length))] + [
        own.randrange(3, 40_000) for _ in range(max(0, length - shared))
    ]


class Simulation:
    def __init__(self, scheduler: Scheduler, lines: list[dict[str, object]]) -> None:
        self.scheduler = scheduler
        self.lines = sorted(enumerate(lines), key=lambda item: float(str(item[1]["at"])))
        self.seen: dict[str, Seen] = {}
        self.now = 0.0
        self.busy = 0.0

    def run(self) -> None:
        pending = iter(self.lines)
        coming = next(pending, None)
        while True:
            while coming is not None and float(str(coming[1]["at"])) <= self.now:
                self._arrive(*coming)
                coming = next(pending, None)
            for given_up in self.scheduler.expire(self.now):
                self.seen[given_up.req_id].refused = given_up.error.code
            plan = self.scheduler.plan_step(self.now)
            if plan is not None:
                self._step(plan)
            elif coming is not None:
                self.now = max(self.now, float(str(coming[1]["at"])))
            else:
                return

    def _arrive(self, number: int, line: dict[str, object]) -> None:
        req_id, key = f"r{number}", str(line.get("key", ""))
        self.seen[req_id] = Seen(float(str(line["at"])), key)
        params = SamplingParams(max_tokens=int(str(line["output"])), ignore_eos=True)
        message = Generate(req_id, "m", prompt_ids(number, line), [[]], [number], params, 10**6, key=key)
        if line.get("priority") == "background":
            message.priority = "background"
        try:
            self.scheduler.add(CLIENT, message, self.now)
        except RequestError as error:
            self.seen[req_id].refused = error.code

    def _step(self, plan: Plan) -> None:
        milliseconds = self.scheduler.prices.table.milliseconds(sum(plan.counts))
        for substep in range(plan.repeat):
            self.now += milliseconds / 1e3
            self.busy += milliseconds / 1e3
            seats = [seat for seat, samples in zip(plan.seats, plan.samples, strict=True) if samples]
            last = substep + 1 == plan.repeat
            self.scheduler.apply_result(
                Result(plan.incarnation, plan.step, substep, last, seats, [7] * len(seats), {}, {}, 1.0), self.now
            )
            for sequence, start, end, finish in list(self.scheduler.outbox.due()):
                self.seen[sequence.request.req_id].tokens += [self.now] * (end - start)
                self.scheduler.outbox.sent(sequence, end, finish)
                if finish is not None:
                    self.scheduler.acknowledge(CLIENT, FinishAck(sequence.request.req_id, sequence.choice))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def summary(simulation: Simulation, wall: float) -> dict[str, object]:
    """Seconds, unless the name says otherwise."""
    by_key: dict[str, list[Seen]] = defaultdict(list)
    for seen in simulation.seen.values():
        by_key[seen.key].append(seen)
    total = sum(len(seen.tokens) for seen in simulation.seen.values())
    result: dict[str, object] = {
        "simulated_s": round(simulation.now, 2),
        "wall_s": round(wall, 3),
        "times_real": round(simulation.now / wall, 1) if wall else None,
        "busy_share": round(simulation.busy / simulation.now, 3) if simulation.now else 0,
        "output_tokens_per_s": round(total / simulation.now, 1) if simulation.now else 0,
        "counters": vars(simulation.scheduler.counters),
        "keys": {},
    }
    for key, group in sorted(by_key.items()):
        gaps = [later - earlier for seen in group for earlier, later in zip(seen.tokens, seen.tokens[1:], strict=False)]
        first = [seen.tokens[0] - seen.at for seen in group if seen.tokens]
        result["keys"][key or "-"] = {  # type: ignore[index]
            "requests": len(group),
            "refused": sum(bool(seen.refused) for seen in group),
            "output_tokens": sum(len(seen.tokens) for seen in group),
            **{f"ttft_p{round(share * 100)}": round(percentile(first, share), 4) for share in (0.5, 0.95, 0.99)},
            **{f"itl_p{round(share * 100)}": round(percentile(gaps, share), 4) for share in (0.5, 0.95, 0.99)},
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Path, nargs="?")
    parser.add_argument("--make", help="print a workload instead: mixed, flood, long-join, shared")
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=8192)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--queue-depth", type=int, default=20_000)
    parser.add_argument("--prices", type=Path, help="JSON: [[rows, milliseconds], ...]")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.make:
        for line in make(options.make):
            print(json.dumps(line))
        return
    source = options.workload.read_text() if options.workload else sys.stdin.read()
    lines = [json.loads(line) for line in source.splitlines() if line.strip()]
    prices = json.loads(options.prices.read_text()) if options.prices else PRICES
    limits = Limits(
        context=options.context,
        vocab=50_000,
        seats=options.seats,
        blocks=options.blocks,
        queue_depth=options.queue_depth,
        queue_tokens=10**9,
        queue_wait_s=1e9,
        step_tokens=512,
        min_step_ms=25.0,
        slow_client_s=60.0,
        reserve_tokens=2048,
        cached_blocks=options.blocks // 4,
        repeat_steps=16,
    )
    simulation = Simulation(
        Scheduler(limits, StepPrices(PriceTable([tuple(price) for price in prices])), frozenset({2}), 1), lines
    )
    started = time.perf_counter()
    simulation.run()
    result = summary(simulation, time.perf_counter() - started)
    print(json.dumps(result) if options.json else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
