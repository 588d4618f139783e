"""How long the service is away when a process of it is lost: streams run, one process is killed or stopped.

    python tools/bench_recovery.py [--model smollm2] [--streams 16] [--rounds 3] [--json FILE]

Each round has a service of its own. `streams`: until each running stream has a further token; `newcomer`: until a request that is
made at that moment has its first. A killed process is noticed at once, a stopped one once it was silent for `watch.heartbeat_s`. It
needs the packages of the `test` extra.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil

from helexa.client import Client, Generation
from helexa.private_server import private_server
from helexa.run_directory import path_for

MODULES = {"worker": "workers.process", "scheduler": "helexa.scheduler.process"}
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 1500
WARM_TOKENS = 20  # that each stream has before
WAIT_S = 60.0


def pid_of(role: str, run_dir: Path) -> int:
    """The one process of a role that serves from this run directory."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if MODULES[role] in line and any(str(run_dir) in word for word in line):
            return int(process.pid)
    raise LookupError(f"no {role} serves from {run_dir}")


class Streams:
    """Greedy streams of one client, and how many tokens each has."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self.counts: dict[Generation, int] = {}
        for index in range(count):
            self.add(index)

    def add(self, index: int) -> Generation:
        prompt = [1000 + 97 * index + 31 * position % 7919 for position in range(PROMPT_TOKENS)]
        generation = self._client.submit(prompt, max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True)
        self.counts[generation] = 0
        return generation

    def until(self, least: dict[Generation, int]) -> float:
        """Seconds until each of these has so many tokens. Raises TimeoutError when nothing comes."""
        started = time.perf_counter()
        while any(self.counts[generation] < count for generation, count in least.items()):
            if not self._client.poll(WAIT_S):
                raise TimeoutError(f"no token for {WAIT_S:g} s")
            for generation in self.counts:
                self.counts[generation] += len(generation.take())
        return time.perf_counter() - started


def measure(model: str, role: str, number: signal.Signals, count: int) -> dict[str, float]:
    """Seconds."""
    with private_server(None, {"model.source": model, "admission.seats": count + 1}) as config:
        run_dir = path_for(config)
        with Client(run_dir) as client:
            streams = Streams(client, count)
            streams.until(dict.fromkeys(streams.counts, WARM_TOKENS))
            os.kill(pid_of(role, run_dir), number)
            started = time.perf_counter()
            while client.poll(0):  # what was on its way before
                for generation in streams.counts:
                    streams.counts[generation] += len(generation.take())
            running = {generation: had + 1 for generation, had in streams.counts.items()}
            newcomer = streams.add(count)
            streams.until(running)
            resumed = time.perf_counter() - started
            streams.until({newcomer: 1})
            return {"streams": resumed, "newcomer": time.perf_counter() - started}


def main() -> int:
    parser = argparse.ArgumentParser(description="How long the service is away when a process of it is lost.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    print("| lost | streams go on after (s, median / longest) | a newcomer has its first token (s) |\n| - | - | - |")
    for role in MODULES:
        for number in SIGNALS:
            rounds = [measure(options.model, role, number, options.streams) for _ in range(options.rounds)]
            columns = {name: [values[name] for values in rounds] for name in ("streams", "newcomer")}
            results[f"{number.name} {role}"] = {
                f"{name}_{kind}": of(values)
                for name, values in columns.items()
                for kind, of in (("median", statistics.median), ("longest", max))
            }
            cells = " | ".join(f"{statistics.median(values):.2f} / {max(values):.2f}" for values in columns.values())
            print(f"| {role}, {number.name} | {cells} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
