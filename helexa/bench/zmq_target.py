"""helexa through its ZeroMQ client, as a target: scheduler and workers alone, with no HTTP and no text in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helexa.bench.pacing import Pace
from helexa.bench.timing import Run, Sample
from helexa.client import Client, Generation

Encode = Callable[[str], list[int]]


@dataclass
class _Open:
    generation: Generation
    sent: float
    arrivals: list[float] = field(default_factory=list)


class ZmqTarget:
    """Prompts become ids before a run begins, outside of its times."""

    kind = "helexa"
    same_length = True

    def __init__(self, run_dir: Path, model: str, encode: Encode, output_tokens: int, temperature: float) -> None:
        self.model = model
        self._client = Client(run_dir, name="bench")
        self._client.models()
        self._encode = encode
        self._options: dict[str, Any] = {"model": model, "max_tokens": output_tokens, "temperature": temperature}

    @property
    def label(self) -> str:
        return "helexa over ZeroMQ"

    def describe(self) -> dict[str, Any]:
        return {"transport": "zmq", "kind": self.kind, "model": self.model, "route": "ids"}

    def close(self) -> None:
        self._client.close()

    def run(self, prompts: Sequence[str], pace: Pace) -> Run:
        """Raises RequestError when one is refused."""
        asked = [self._encode(prompt) for prompt in prompts]
        live: dict[str, _Open] = {}
        samples: list[Sample] = []
        started = 0
        begun, cpu = time.perf_counter(), time.process_time()
        while started < len(asked) or live:
            wait = pace.wait_s(time.perf_counter() - begun, len(live), started) if started < len(asked) else None
            if wait == 0.0:
                sent = time.perf_counter()
                generation = self._client.submit(asked[started], ignore_eos=True, **self._options)
                live[generation.req_id] = _Open(generation, sent)
                started += 1
            elif live:
                samples += self._take(live, wait)
            else:
                time.sleep(wait or 0.0)  # an open loop's gap: nothing runs, nothing is due
        return Run(samples, time.perf_counter() - begun, time.process_time() - cpu)

    def _take(self, live: dict[str, _Open], wait: float | None) -> list[Sample]:
        """The samples of those that ended."""
        ended = []
        for generation in self._client.poll(wait):
            item, now = live[generation.req_id], time.perf_counter()
            if generation.take():
                item.arrivals.append(now)
            finish = generation.finish
            if finish is not None:
                del live[generation.req_id]
                error = finish.error if finish.reason == "error" else ""
                counts = (finish.prompt_tokens, finish.cached_tokens, finish.output_tokens)
                ended.append(Sample(item.sent, item.arrivals, now, *counts, error))
        return ended
