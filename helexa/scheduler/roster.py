"""The models that the scheduler process serves: engines by instance, and which one a request goes to. Pure.

A name has one current engine. While a model is swapped there is a second one of its name: it becomes current when it is ready,
and the first goes on with what was made for it until nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from helexa.errors import RequestError
from helexa.scheduler.engine import Engine
from ipc.messages import Generate, ModelInfo

ANSWERING = ("ready", "restarting")
LINGER_S = 5.0  # a retired engine takes what was on its way when clients were told of the next


class Roster:
    def __init__(self) -> None:
        self._engines: dict[int, Engine] = {}
        self._retired: dict[int, float] = {}  # by instance: when

    def __iter__(self) -> Iterator[Engine]:
        return iter(list(self._engines.values()))

    def get(self, instance: int) -> Engine | None:
        return self._engines.get(instance)

    def add(self, engine: Engine) -> None:
        self._engines[engine.instance] = engine

    def current(self) -> dict[str, Engine]:
        """By name: the newest that answers, else the newest."""
        chosen: dict[str, Engine] = {}
        for instance, engine in sorted(self._engines.items()):
            if instance in self._retired:
                continue
            before = chosen.get(engine.name)
            if before is None or engine.state in ANSWERING or before.state not in ANSWERING:
                chosen[engine.name] = engine
        return chosen

    def infos(self) -> list[ModelInfo]:
        return [engine.info() for engine in self.current().values()]

    def promised_bytes(self, besides: Engine) -> int:
        """Memory that the other models may come to take, and where the ceiling is a number of the configuration, their weights: a
        ceiling made of what is free takes no account of what is used."""
        weights = besides.config.memory.limit_mib != "auto"
        others = [engine for engine in self if engine is not besides]
        return sum(engine.promised_bytes + (engine.weight_bytes if weights else 0) for engine in others)

    def for_request(self, message: Generate) -> Engine:
        """Raises RequestError. What was prepared for an instance goes to no other: its ids may mean something else there."""
        current = self.current()
        if message.instance:
            engine = self._engines.get(message.instance)
            if engine is not None and engine.name == message.model:
                return engine
            if message.resumed or message.model in current:
                raise RequestError("no_worker", f"model `{message.model}` was replaced in the meantime; ask again", "model")
        engine = current.get(message.model)
        if engine is None:
            served = ", ".join(current) or "none yet"
            raise RequestError("model_not_found", f"model `{message.model}` is not served; served: {served}", "model")
        return engine

    def retire(self, instance: int, now: float) -> None:
        self._retired.setdefault(instance, now)

    def take_idle(self, now: float) -> list[Engine]:
        """The retired engines that have nothing left to do; they are forgotten."""
        idle = [
            instance
            for instance, since in self._retired.items()
            if since + LINGER_S <= now and (instance not in self._engines or not self._engines[instance].num_requests)
        ]
        for instance in idle:
            del self._retired[instance]
        return [self._engines.pop(instance) for instance in idle if instance in self._engines]

    def next_deadline(self) -> float | None:
        """When `take_idle` may find one that lingers only."""
        lingering = [since + LINGER_S for instance, since in self._retired.items() if not self._idle_later(instance)]
        return min(lingering, default=None)

    def _idle_later(self, instance: int) -> bool:
        engine = self._engines.get(instance)
        return engine is not None and engine.num_requests > 0
