"""Decode and prompt speed of helexa (through its ZeroMQ client) against llama.cpp's llama-batched-bench, in turns.

    python tools/decode_vs_llamacpp.py --batched-bench PATH --llama-model FILE.gguf [--model smollm2] [--pairs 5]

For each pair and batch: llama-batched-bench computes prompts of 109 tokens and 64 tokens of output; helexa is asked the same.
Its decode speed is counted between the last first token and the first last token of the streams, its prompt speed from one
prompt's time to its first token. Printed: medians of both and of the pairs' ratios. The machine must be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from helexa.client import Client, Generation
from helexa.private_server import private_server
from helexa.run_directory import path_for

PROMPT, OUTPUT = 109, 64


def llama(binary: Path, model: Path, batch: int, threads: int) -> tuple[float, float]:
    """(prompt tokens, output tokens) a second."""
    shape = ["-c", "8192", "-b", "2048", "-ub", "512", "-npp", str(PROMPT), "-ntg", str(OUTPUT), "-npl", str(batch)]
    command = [str(binary), "-m", str(model), *shape, "-t", str(threads), "-tb", str(threads), "--output-format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return line["speed_pp"], line["speed_tg"]


def helexa(client: Client, model: str, batch: int, chance: random.Random) -> tuple[float, float]:
    """(prompt tokens, output tokens) a second; the first only for a batch of one."""
    prompts = [[chance.randrange(1000, 40_000) for _ in range(PROMPT)] for _ in range(batch)]
    asked = time.perf_counter()
    output = OUTPUT + 24 * batch  # so that all streams decode together for a while, however late the last prompt was done
    generations = [client.submit(prompt, model=model, max_tokens=output, temperature=0, ignore_eos=True) for prompt in prompts]
    times: dict[Generation, list[float]] = defaultdict(list)
    while any(len(times[generation]) < output for generation in generations):
        client.poll(60)
        now = time.perf_counter()
        for generation in generations:
            times[generation] += [now] * len(generation.take())
    begin = max(stamps[0] for stamps in times.values())
    end = min(stamps[-1] for stamps in times.values())
    decoded = sum(sum(begin < stamp <= end for stamp in stamps) for stamps in times.values())
    prompt_speed = PROMPT / (times[generations[0]][0] - asked) if batch == 1 else 0.0
    return prompt_speed, decoded / (end - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batched-bench", type=Path, required=True)
    parser.add_argument("--llama-model", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batches", default="1,4,8,16")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    options = parser.parse_args()
    batches = [int(word) for word in options.batches.split(",")]
    chance = random.Random(time.time_ns())
    ours: dict[int, list[tuple[float, float]]] = defaultdict(list)
    theirs: dict[int, list[tuple[float, float]]] = defaultdict(list)
    flags = {"model.source": options.model, "cpu.threads": options.threads, "cache.prefix_mib": 0}
    with private_server(None, flags) as config, Client(path_for(config)) as client:
        model = next(iter(client.models()))
        name = model if isinstance(model, str) else model["name"]
        for batch in batches:
            helexa(client, name, batch, chance)  # not counted
        for pair in range(options.pairs):
            for batch in batches:
                turns = [
                    lambda batch=batch: theirs[batch].append(
                        llama(options.batched_bench, options.llama_model, batch, options.threads)
                    ),
                    lambda batch=batch: ours[batch].append(helexa(client, name, batch, chance)),
                ]
                for turn in turns if pair % 2 else reversed(turns):
                    turn()
    result = {
        "load": os.getloadavg(),
        "llama_model": options.llama_model.name,
        "pairs": options.pairs,
        "threads": options.threads,
    }
    for batch in batches:
        ratios = [our[1] / their[1] for our, their in zip(ours[batch], theirs[batch], strict=True)]
        result[f"decode {batch}"] = {
            "helexa": round(statistics.median(speed for _, speed in ours[batch]), 1),
            "llama.cpp": round(statistics.median(speed for _, speed in theirs[batch]), 1),
            "ratio": round(statistics.median(ratios), 2),
        }
    if 1 in ours:
        ratios = [our[0] / their[0] for our, their in zip(ours[1], theirs[1], strict=True)]
        result["prompt"] = {
            "helexa": round(statistics.median(speed for speed, _ in ours[1]), 1),
            "llama.cpp": round(statistics.median(speed for speed, _ in theirs[1]), 1),
            "ratio": round(statistics.median(ratios), 2),
        }
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
