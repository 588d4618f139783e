"""The scheduler under pressure, on the real service: what running streams, newcomers and other keys see.

    python tools/bench_pressure.py [--model smollm2] [--only join,burst,keys,shared,overload] [--json FILE]

join      a 4,000-token prompt joins 8 running streams: p95 time between their tokens before and during
burst     16 requests at once: time to first token and to the last
keys      two keys, one with ten times the requests waiting: the tokens each gets while both have some waiting
shared    two requests with one 1,000-token system prompt: time to first token of the second against the first
overload  four times what the server can do, over HTTP, for a minute: the codes, and the memory before and after
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from helexa.bench.load import Address, exchange, paced
from helexa.bench.pacing import OpenLoop
from helexa.client import Client, Generation
from helexa.commands import ctl
from helexa.config import Config
from helexa.private_server import private_server
from helexa.run_directory import path_for

WAIT_S = 60.0
Stamps = dict[Generation, list[float]]


class Session:
    """A private service, its client, and the times at which tokens came."""

    def __init__(self, config: Config, client: Client) -> None:
        self.config = config
        self.client = client
        self.chance = random.Random(time.time_ns())
        self.stamps: Stamps = defaultdict(list)
        self.live: list[Generation] = []

    def prompt(self, tokens: int) -> list[int]:
        return [self.chance.randrange(1000, 40_000) for _ in range(tokens)]

    def ask(self, prompt: list[int], tokens: int, **options: Any) -> Generation:
        generation = self.client.submit(prompt, max_tokens=tokens, temperature=0, ignore_eos=True, **options)
        self.live.append(generation)
        return generation

    def until(self, done: Callable[[], bool]) -> None:
        """Takes tokens, noting their times, until `done`."""
        while not done():
            self.client.poll(WAIT_S)
            now = time.perf_counter()
            for generation in self.live:
                self.stamps[generation] += [now] * len(generation.take())

    def finish(self) -> None:
        self.until(lambda: all(generation.finish is not None for generation in self.live))
        self.live.clear()


def gaps(stamps: list[float], begin: float, end: float) -> list[float]:
    """Milliseconds between tokens, of which the later came within [begin, end]."""
    return [(late - early) * 1e3 for early, late in pairwise(stamps) if begin <= late <= end]


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


def join(session: Session) -> dict[str, float]:
    running = [session.ask(session.prompt(64), 2500) for _ in range(8)]
    session.until(lambda: all(len(session.stamps[item]) >= 200 for item in running))
    begun = time.perf_counter()
    newcomer = session.ask(session.prompt(4000), 4)
    session.until(lambda: bool(session.stamps[newcomer]))
    joined = session.stamps[newcomer][0]
    assert all(item.finish is None for item in running), (
        "the streams ended before the newcomer's first token; let them run longer"
    )
    before = [gap for item in running for gap in gaps(session.stamps[item][50:], 0, begun)]
    during = [gap for item in running for gap in gaps(session.stamps[item], begun, joined)]
    for item in running:
        item.cancel()
    session.live.clear()
    return {
        "itl_p95_before_ms": round(p95(before), 2),
        "itl_p95_during_ms": round(p95(during), 2),
        "ratio": round(p95(during) / p95(before), 2),
        "newcomer_ttft_s": round(joined - begun, 2),
    }


def burst(session: Session) -> dict[str, float]:
    begun = time.perf_counter()
    asked = [session.ask(session.prompt(109), 64) for _ in range(16)]
    session.finish()
    first = [session.stamps[item][0] - begun for item in asked]
    return {
        "ttft_p50_s": round(statistics.median(first), 3),
        "ttft_last_s": round(max(first), 3),
        "all_done_s": round(max(session.stamps[item][-1] for item in asked) - begun, 3),
    }


def keys(session: Session) -> dict[str, float]:
    flood = [session.ask(session.prompt(40), 40, key="flood") for _ in range(120)]
    calm = [session.ask(session.prompt(40), 40, key="calm") for _ in range(60)]
    # a share is only defined while both keys have requests waiting: half of what calm has asked
    session.until(lambda: sum(item.finish is not None for item in calm) >= 30)
    tokens = {name: sum(len(session.stamps[item]) for item in group) for name, group in (("flood", flood), ("calm", calm))}
    for item in session.live:
        item.cancel()
    session.live.clear()
    return {**tokens, "calm_share": round(tokens["calm"] / sum(tokens.values()), 3), "fair_share": 0.5}


def shared(session: Session) -> dict[str, float]:
    ratios, firsts = [], []
    for _ in range(5):
        system = session.prompt(1000)
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            asked = session.ask([*system, *session.prompt(20)], 4)
            session.finish()
            times.append(session.stamps[asked][0] - begun)
        firsts.append(times[0])
        ratios.append(times[1] / times[0])
    return {"ttft_first_s": round(statistics.median(firsts), 3), "second_over_first": round(statistics.median(ratios), 3)}


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def pids(config: Config) -> dict[str, int]:
    """The scheduler, and its siblings under the supervisor."""
    scheduler = int(ctl.ask(config, "status")["pid"])
    parent = int(Path(f"/proc/{scheduler}/stat").read_text().rsplit(")", 1)[1].split()[1])
    children = [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return {"scheduler": scheduler, "worker": next(pid for pid in children if pid != scheduler)}


def overload(session: Session, seconds: float = 60.0) -> dict[str, Any]:
    measured = burst(session)
    capacity = 16 / measured["all_done_s"]
    rate = 4 * capacity
    address = Address.parse(f"http://127.0.0.1:{session.config.server.port}")
    name = ctl.ask(session.config, "status")["models"][0]["name"]
    bodies = [
        json.dumps(
            {"model": name, "prompt": session.prompt(109), "max_tokens": 64, "ignore_eos": True, "stream": True, "temperature": 0}
        ).encode()
        for _ in range(int(rate * seconds))
    ]
    processes = pids(session.config)
    before = {role: resident(pid) for role, pid in processes.items()}

    async def load() -> list[Any]:
        async def ask(body: bytes) -> Any:
            return await exchange(address, "POST", "/completions", body)

        return await paced(bodies, OpenLoop(rate, len(bodies), 1), ask)

    seen = asyncio.run(load())
    after = {role: resident(pid) for role, pid in processes.items()}
    assert pids(session.config) == processes, "a process was replaced"
    codes = Counter(str(item.status) if not item.error else item.error for item in seen)
    whole = sum(item.status == 200 and b"[DONE]" in item.events[-1][1] for item in seen if item.events)
    refused = [json.loads(item.body)["error"]["code"] for item in seen if item.status == 503]
    return {
        "capacity_per_s": round(capacity, 1),
        "rate_per_s": round(rate, 1),
        "codes": dict(codes),
        "whole_replies": whole,
        "refusals": dict(Counter(refused)),
        "memory_growth_mib": {role: round(after[role] - before[role], 1) for role in after},
    }


CASES: dict[str, tuple[Callable[[Session], dict[str, Any]], dict[str, Any]]] = {
    "join": (join, {"cache.prefix_mib": 0}),
    "burst": (burst, {"cache.prefix_mib": 0}),
    "keys": (keys, {"cache.prefix_mib": 0, "admission.seats": 8}),
    "shared": (shared, {}),
    "overload": (overload, {"admission.queue_depth": 64, "admission.queue_wait_s": 5.0}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--json", type=Path, help="append the results to this file")
    options = parser.parse_args()
    for name in options.only.split(","):
        case, flags = CASES[name]
        with private_server(None, {"model.source": options.model, **flags}) as config, Client(path_for(config)) as client:
            result = case(Session(config, client))
        print(f"{name}: {json.dumps(result)}", flush=True)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"case": name, **result}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
