"""Prometheus metrics, owned by the scheduler process so that several web workers agree."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from helexa.scheduler.engine import Engine

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

COUNTERS = {
    "requests": "Requests taken.",
    "refused": "Requests refused because the queue was full or the wait too long.",
    "aborted": "Sequences ended by their client, or because it was gone or too slow.",
    "steps": "Steps run by the device workers.",
    "prompt_tokens": "Prompt tokens computed.",
    "cached_tokens": "Prompt tokens whose KV was cached.",
    "output_tokens": "Tokens drawn.",
    "handoffs": "Plans sent to the device workers; fewer than steps where a lone stream's worker ran several by itself.",
    "preemptions": "Sequences that gave up their blocks and were computed again.",
    "row_errors": "Sequences ended because their row of a step failed.",
    "worker_losses": "Device workers lost.",
    "device_faults": "Device workers ended by a fault of their device or ops.",
    "memory_faults": "Device workers ended for want of memory.",
    "hangs": "Device workers ended because a step took longer than watch.step_s.",
    "request_errors": "Sequences ended because what they ask for could not be done.",
    "poisonous": "Sequences ended because device workers died of them.",
}


class Metrics:
    """Counts live in the schedulers; only what has a distribution is kept here."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.engines: dict[str, Engine] = {}
        self.time_to_first_token = Histogram(
            "helexa_time_to_first_token_seconds",
            "Arrival to first token, in the scheduler.",
            ["model"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self.step_seconds = Histogram(
            "helexa_step_seconds", "Plan sent to result received.", ["model"], buckets=SECONDS, registry=self._registry
        )
        self._registry.register(_Engines(self.engines))

    def text(self) -> str:
        return generate_latest(self._registry).decode()


class _Engines(Collector):
    def __init__(self, engines: dict[str, Engine]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        schedulers = [(name, engine.scheduler) for name, engine in self._engines.items() if engine.scheduler is not None]
        for counter, doc in COUNTERS.items():
            family = CounterMetricFamily(f"helexa_{counter}", doc, labels=["model"])
            for name, scheduler in schedulers:
                family.add_metric([name], getattr(scheduler.counters, counter))
            yield family
        sequences = GaugeMetricFamily("helexa_sequences", "Sequences by state.", labels=["model", "state"])
        blocks = GaugeMetricFamily("helexa_kv_blocks", "KV blocks by state.", labels=["model", "state"])
        release = GaugeMetricFamily(
            "helexa_abort_release_steps_max", "Most steps between an abort and the freeing of what it held.", labels=["model"]
        )
        for name, scheduler in schedulers:
            sequences.add_metric([name, "running"], len(scheduler.running))
            sequences.add_metric([name, "waiting"], len(scheduler.waiting))
            blocks.add_metric([name, "used"], scheduler.memory.pool.num_used)
            blocks.add_metric([name, "cached"], scheduler.memory.pool.num_cached)
            blocks.add_metric([name, "free"], scheduler.memory.pool.num_free)
            release.add_metric([name], scheduler.counters.abort_release_steps_max)
        yield from (sequences, blocks, release)
        ready = GaugeMetricFamily("helexa_model_ready", "1 when the model answers.", labels=["model"])
        for name, engine in self._engines.items():
            ready.add_metric([name], float(engine.state == "ready"))
        yield ready
