"""Prometheus metrics, owned by the scheduler process so that several web workers agree (docs/operation.md has the table).

Counts live in the schedulers and are read when somebody asks; only what has a distribution is kept here. What vLLM's dashboards
read is given under vLLM's names as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from helexa.keys.key_limits import Usage
from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import Roster

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG_SECONDS = (*SECONDS, 60.0, 120.0, 300.0, 600.0)
SHORT_SECONDS = (0.001, 0.0025, *SECONDS[:9])

COUNTERS = {
    "loads": "Times the model was loaded into memory.",
    "requests": "Requests taken.",
    "refused": "Requests refused because the queue was full or the wait too long.",
    "aborted": "Sequences ended by their client, by an operator, or because their client was gone or too slow.",
    "steps": "Steps run by the device workers.",
    "prompt_tokens": "Prompt tokens computed.",
    "cached_tokens": "Prompt tokens whose KV was cached.",
    "output_tokens": "Tokens drawn.",
    "handoffs": "Plans sent to the device workers; fewer than steps where a worker ran several by itself.",
    "preemptions": "Sequences that gave up their blocks and were computed again.",
    "row_errors": "Sequences ended because their row of a step failed.",
    "worker_losses": "Device workers lost.",
    "device_faults": "Device workers ended by a fault of their device or ops.",
    "memory_faults": "Device workers ended for want of memory.",
    "hangs": "Device workers ended because a step took longer than watch.step_s.",
    "request_errors": "Sequences ended because what they ask for could not be done.",
    "poisonous": "Sequences ended because device workers died of them.",
}
KEY_COUNTERS = {
    "requests": "Requests taken, by API key.",
    "refused": "Requests refused by a limit of their API key.",
    "prompt_tokens": "Prompt tokens of requests, by API key.",
    "output_tokens": "Output tokens sent, by API key.",
}


class Metrics:
    def __init__(self, roster: Roster) -> None:
        self._registry = registry = CollectorRegistry()

        def histogram(name: str, doc: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"helexa_{name}", doc, ["model"], buckets=buckets, registry=registry)

        self.time_to_first_token = histogram("time_to_first_token_seconds", "Arrival to first token, in the scheduler.")
        self.between_tokens = histogram("inter_token_seconds", "Between two output tokens of a sequence.", SHORT_SECONDS)
        self.request_seconds = histogram("request_seconds", "Arrival to the end of a choice.", LONG_SECONDS)
        self.step_seconds = histogram("step_seconds", "Plan sent, or last step ended, to result received.", SHORT_SECONDS)
        self._ends = Counter("helexa_ended", "Choices that ended, by reason.", ["model", "reason"], registry=registry)
        self._registry.register(_Engines(roster))
        self._registry.register(_VllmNames(roster, self))

    def note_end(self, model: str, reason: str, seconds: float) -> None:
        self._ends.labels(model, reason).inc()
        self.request_seconds.labels(model).observe(seconds)

    def count_keys(self, usage: Mapping[str, Usage]) -> None:
        """Shows what each API key used."""
        self._registry.register(_Keys(usage))

    def ends(self) -> Iterator[tuple[str, str, float]]:
        """(model, reason, choices)."""
        for family in self._ends.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    yield sample.labels["model"], sample.labels["reason"], sample.value

    def text(self) -> str:
        return generate_latest(self._registry).decode()


class _Engines(Collector):
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def collect(self) -> Iterator[Metric]:
        engines = self._roster.current()
        for counter, doc in COUNTERS.items():
            family = CounterMetricFamily(f"helexa_{counter}", doc, labels=["model"])
            for name, engine in engines.items():
                family.add_metric([name], getattr(engine.counters, counter))
            yield family
        yield from _now(engines)
        yield from _memory(engines)


def _now(engines: dict[str, Engine]) -> Iterator[Metric]:
    sequences = GaugeMetricFamily("helexa_sequences", "Sequences by state.", labels=["model", "state"])
    blocks = GaugeMetricFamily("helexa_kv_blocks", "KV blocks by state.", labels=["model", "state"])
    seats = GaugeMetricFamily("helexa_seats", "Sequences that can run at once.", labels=["model"])
    release = GaugeMetricFamily(
        "helexa_abort_release_steps_max", "Most steps between an abort and the freeing of what it held.", labels=["model"]
    )
    ready = GaugeMetricFamily("helexa_model_ready", "1 when the model answers.", labels=["model"])
    paused = GaugeMetricFamily("helexa_model_paused", "1 while new requests of the model wait.", labels=["model"])
    for name, engine in engines.items():
        ready.add_metric([name], float(engine.state == "ready"))
        paused.add_metric([name], float(engine.paused))
        scheduler = engine.scheduler
        if scheduler is None:
            continue
        sequences.add_metric([name, "running"], len(scheduler.running))
        sequences.add_metric([name, "waiting"], len(scheduler.waiting) + engine.num_held)
        blocks.add_metric([name, "used"], scheduler.memory.pool.num_used)
        blocks.add_metric([name, "cached"], scheduler.memory.pool.num_cached)
        blocks.add_metric([name, "free"], scheduler.memory.pool.num_free)
        seats.add_metric([name], scheduler.limits.seats)
        release.add_metric([name], scheduler.counters.abort_release_steps_max)
    yield from (sequences, blocks, seats, release, ready, paused)


def _memory(engines: dict[str, Engine]) -> Iterator[Metric]:
    memory = GaugeMetricFamily(
        "helexa_model_memory_bytes",
        "Memory of a model: resident once loaded, and the most its KV takes.",
        labels=["model", "what"],
    )
    for name, engine in engines.items():
        memory.add_metric([name, "weights"], engine.weight_bytes)
        memory.add_metric([name, "kv"], engine.promised_bytes)
    yield memory


class _Keys(Collector):
    def __init__(self, usage: Mapping[str, Usage]) -> None:
        self._usage = usage

    def collect(self) -> Iterator[Metric]:
        for counter, doc in KEY_COUNTERS.items():
            family = CounterMetricFamily(f"helexa_key_{counter}", doc, labels=["key"])
            for key, usage in self._usage.items():
                family.add_metric([key], usage.counts()[counter])
            yield family


class _VllmNames(Collector):
    """The same numbers under the names that dashboards for vLLM read."""

    def __init__(self, roster: Roster, metrics: Metrics) -> None:
        self._roster = roster
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        gauges = {
            "num_requests_running": "Sequences that run.",
            "num_requests_waiting": "Sequences that wait.",
            "kv_cache_usage_perc": "Part of the KV blocks that is used, 0 to 1.",
        }
        counters = {
            "prompt_tokens": "Prompt tokens computed.",
            "generation_tokens": "Tokens drawn.",
            "num_preemptions": "Preemptions.",
            "prefix_cache_hits": "Prompt tokens whose KV was cached.",
            "prefix_cache_queries": "Prompt tokens, computed or cached.",
        }
        found = {name: engine.scheduler for name, engine in self._roster.current().items() if engine.scheduler is not None}
        values = {
            name: {
                "num_requests_running": len(scheduler.running),
                "num_requests_waiting": len(scheduler.waiting),
                "kv_cache_usage_perc": scheduler.memory.pool.num_used / max(1, scheduler.memory.pool.total),
                "prompt_tokens": scheduler.counters.prompt_tokens,
                "generation_tokens": scheduler.counters.output_tokens,
                "num_preemptions": scheduler.counters.preemptions,
                "prefix_cache_hits": scheduler.counters.cached_tokens,
                "prefix_cache_queries": scheduler.counters.cached_tokens + scheduler.counters.prompt_tokens,
            }
            for name, scheduler in found.items()
        }
        for kind, table in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for metric, doc in table.items():
                family = kind(f"vllm:{metric}", doc, labels=["model_name"])
                for name, numbers in values.items():
                    family.add_metric([name], numbers[metric])
                yield family
        yield from self._ends()
        for ours, theirs in (
            (self._metrics.time_to_first_token, "time_to_first_token_seconds"),
            (self._metrics.between_tokens, "inter_token_latency_seconds"),
            (self._metrics.request_seconds, "e2e_request_latency_seconds"),
        ):
            yield from _renamed(ours, f"vllm:{theirs}")

    def _ends(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "vllm:request_success", "Choices that ended whole.", labels=["model_name", "finished_reason"]
        )
        for model, reason, count in self._metrics.ends():
            if reason in ("stop", "length"):
                family.add_metric([model, reason], count)
        yield family


def _renamed(histogram: Histogram, name: str) -> Iterator[Metric]:
    for family in histogram.collect():
        copy = Metric(name, family.documentation, "histogram")
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = {("model_name" if label == "model" else label): value for label, value in sample.labels.items()}
                copy.add_sample(name + sample.name.removeprefix(family.name), labels, sample.value)
        yield copy
